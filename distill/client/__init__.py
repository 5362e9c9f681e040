"""A client of the service (`python -m distill.service`): the same words as its paths, by the standard library alone.

from distill.client import Client

client = Client("http://127.0.0.1:8080")
client.upload("films.csv")
job = client.submit(["+teacher=minilm", "+student=distilbert", "task=classification", "task.data_dir=data:films"])
client.wait(job["id"])  # A bar in a terminal and in a notebook.
client.fetch(job["id"])  # Its bundle, as a directory.
"""

from distill.client.client import Client as Client
from distill.client.connection import Event as Event
from distill.client.connection import ServiceError as ServiceError
from distill.client.connection import UnreachableServiceError as UnreachableServiceError
