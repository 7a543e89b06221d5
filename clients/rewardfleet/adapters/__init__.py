"""One module per trainer, in its own terms. None of them imports its trainer at import time.

The pages in docs/trainers have examples, and what to change in each trainer.

Arguments that they have in common; where a signature has `options`, all but the first two are:

    service: Which service scores a response: "code", "tools", "answers" or "video".
    url: The base URL of that service, or the base URLs of its replicas.
    column: The column of the dataset, or the field of a row, with what a response is scored by. By
        default `tests` for code, `ground_truth` for tools, `reference` for answers, `clip` for
        video, which also reads `task`.
    columns: Further columns that are fields of the request, e.g. `mode` and `limits` for code; see
        `rewardfleet.code_request`, `tools_request`, `answers_request` and `video_request`. Adapters
        that score one sample per call read all fields of a row.
    on_failure: "raise", or the reward that replaces a missing one, as in `RewardFleet`. Trainers
        differ in what they do with an error and with NaN. After three calls in a row without any
        reward, the error is raised in any case.
    Options of `RewardFleet`, e.g. `timeout_s`, `api_key`, `max_concurrency`.

An adapter raises `ValueError` if one of them is out of range, if a URL is not valid, or if
`on_failure` is NaN where the trainer cannot leave it out, and `TypeError` if there is no such
service or option.
"""
