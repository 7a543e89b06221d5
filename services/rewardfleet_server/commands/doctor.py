"""The checks of `rewardfleet doctor` for the services."""

from collections.abc import Iterator

from rewardfleet_server.flags import read_settings
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.settings import ENV_PREFIX, ServerSettings, unknown_variable_warnings
from rewardfleet_server.system.diagnosis import Diagnosis, check_extra, check_redis_servers
from rewardfleet_server.system.listener import bind


def diagnoses() -> Iterator[Diagnosis]:
    """Check the services with the settings of the environment."""
    settings_of: dict[str, ServerSettings] = {}
    for name, entry in SERVICES.items():
        try:
            settings_of[name] = read_settings(entry.settings.load(), {})
        except ValueError as error:
            fix = "correct the value, or unset the environment variable"
            yield Diagnosis("failed", f"{name}: {error}", fix)
    servers = list(check_redis_servers(settings_of.values(), unreachable="failed"))
    what = "cache or run state that replicas share (--cache, --run-state)"
    yield from servers or [check_extra("redis", what, "redis")]
    for name, settings in settings_of.items():
        yield from SERVICES[name].checks(settings)
        try:
            bind(settings.host, settings.port).close()
        except ValueError as error:
            fix = (
                f"rewardfleet serve {name} --port 0; `rewardfleet status URL` says what runs there"
            )
            yield Diagnosis("note", f"{name}: {error}", fix)
        else:
            yield Diagnosis("ok", f"{name}: {settings.host}:{settings.port} is free")
    for warning in unknown_variable_warnings(each.settings.load() for each in SERVICES.values()):
        variable = next(word for word in warning.split() if word.startswith(ENV_PREFIX))
        yield Diagnosis("note", warning, f"unset {variable}")
