"""An endpoint that answers requests with a model's predictions: `deploy`; and the same answers offline: `replay`.

A request goes one way: ``app.py`` (HTTP: key, limits) -> ``question.py`` (JSON or Arrow -> `Question`) -> ``served_graph.py``
(own ids and new rows -> a sample of this request alone, in a thread) -> ``deploy.py`` (requests that are ready -> one batch for
the model, in the main thread, inside the step of a predict loop) -> ``question.py`` (answer -> JSON or Arrow). A sample is a
function of its request, its key and the version of the graph, whatever other requests there are; they meet in the model alone.
"""
