// Tables that are wider than the page scroll with the keyboard too.
const reachTables = () => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap"))
    table.tabIndex = table.scrollWidth > table.clientWidth ? 0 : -1;
};
new MutationObserver(reachTables).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", reachTables);
reachTables();
