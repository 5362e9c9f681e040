"""Loss terms that compare hidden states."""

import torch.nn.functional as F
from torch import Tensor, nn

from distill.contracts import Items, Outputs
from distill.losses.term import Term


class Cosine(Term):
    """`1 - cos(h_student, h_teacher)` of the last hidden states at all tokens except padding.

    From Sanh et al., arXiv 1910.01108, section 3. Unlike in the paper, the widths may differ. A learned projection then
    maps the student's states `[B, L, H_student]` to the teacher's width `[B, L, H_teacher]`.
    """

    needs = frozenset({"hidden_states"})
    reads_logits = False

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        self.projection: nn.Module = nn.Identity()

    def connect(self, student_width: int, teacher_width: int) -> None:
        if student_width != teacher_width:
            self.projection = nn.Linear(student_width, teacher_width, bias=False)

    def teacher_layers(self, student_depth: int, teacher_depth: int) -> tuple[int, ...]:
        return (teacher_depth,)

    def count(self, items: Items) -> Tensor:
        return items["attention_mask"].sum()

    def forward(self, student: Outputs, teacher: Outputs, items: Items) -> tuple[Tensor, Tensor]:
        if student.hidden_states is None or teacher.hidden_states is None:
            raise ValueError("cosine got outputs without hidden states, expected [B, L, H] of both models")
        tokens = items["attention_mask"].bool()
        student_states = self.projection(student.hidden_states[-1][tokens])
        teacher_states = teacher.hidden_states[-1][tokens]
        if student_states.shape[-1] != teacher_states.shape[-1]:
            raise ValueError(
                f"cosine got hidden states {student_states.shape[-1]} wide from the student and "
                f"{teacher_states.shape[-1]} from the teacher: call connect() with both widths first"
            )
        similarity = F.cosine_similarity(student_states.float(), teacher_states.float(), dim=-1)
        return (1 - similarity).sum(), self.count(items)
