"""Its settings."""

from rewardfleet.services import SERVICES
from rewardfleet_server.settings import ServerSettings, setting


class WordsSettings(ServerSettings):
    port: int = setting(SERVICES["words"].port, "TCP port.")
