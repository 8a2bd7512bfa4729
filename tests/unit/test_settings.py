"""Settings come from a file, the environment and flags, and a mistake in any of them is named where it was made."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import SettingsError
from headgate.serve.runtime.process_count import available_cores, process_count
from headgate.setting_sources import SettingOrigin
from headgate.settings import Address, Secret, Settings, SettingSource, describe, is_loopback


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _file(text: str, name: str = "headgate.toml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def _refusal(
    environ: dict[str, str] | None = None, file: Path | None = None, flags: dict[str, object] | None = None
) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.load(environ or {}, file, flags or {})
    return caught.value.message


def test_load__nothing_given__defaults_with_an_absolute_home(tmp_path: Path) -> None:
    settings = Settings.load({}, None, {})

    assert settings.home == tmp_path / ".headgate"
    assert str(settings.http) == "127.0.0.1:8400"
    assert settings.store.backend == "sqlite"
    assert settings.store.synchronous == "FULL"


def test_load__all_three_sources__flag_beats_variable_beats_file() -> None:
    _file('drain_seconds = 20\nhome = "from-file"\n[log]\nlevel = "error"\nformat = "json"\n')
    environ = {"HEADGATE_HOME": "from-variable", "HEADGATE_LOG_LEVEL": "debug"}

    settings = Settings.load(environ, None, {"home": "from-flag", "http": None})

    assert settings.home.name == "from-flag"
    assert settings.log.level == "debug"
    assert settings.log.format == "json"
    assert settings.drain_seconds == 20.0


def test_load__all_three_sources__remembers_where_each_was_set(tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text("drain_seconds = 3\n")

    settings = Settings.load({"HEADGATE_LOG_LEVEL": "debug"}, file, {"home": str(tmp_path), "http": None})

    assert settings.sources == {
        "drain_seconds": SettingSource(SettingOrigin.FILE, f"{file} line 1"),
        "log.level": SettingSource(SettingOrigin.ENVIRONMENT, "variable HEADGATE_LOG_LEVEL"),
        "home": SettingSource(SettingOrigin.COMMAND_LINE, "flag --home"),
    }
    assert (settings.value_of("drain_seconds"), settings.value_of("log.level")) == (3.0, "debug")


def test_load__every_kind_from_variables__is_read_into_its_type() -> None:
    environ = {
        "HEADGATE_ALLOWED_HOSTS": "a.example, b.example",
        "HEADGATE_BEHIND_PROXY": "true",
        "HEADGATE_CACHE_ENTRIES_MAX": "5",
        "HEADGATE_CACHE_REDIS_URL": "redis://:hunter2@cache/0",
        "HEADGATE_STORE_TABLE_NAMES": '{"headgate-fanout": "chunks"}',
        "HEADGATE_TELEMETRY_OTLP_ENDPOINT": "https://collector:4318",
        "HEADGATE_HTTP": "[::1]:0",
    }

    settings = Settings.load(environ, None, {})

    assert settings.allowed_hosts == ("a.example", "b.example")
    assert settings.behind_proxy is True
    assert settings.cache.entries_max == 5
    assert settings.cache.redis_url == Secret("redis://:hunter2@cache/0")
    assert settings.store.table_names == {"headgate-fanout": "chunks"}
    assert settings.telemetry.otlp_endpoint == "https://collector:4318"
    assert settings.http == Address("::1", 0)


def test_load__where_events_may_be_forwarded_to__is_read_from_file_and_variables() -> None:
    _file(
        '[forward]\nprivate_networks = ["10.0.0.0/8", "fd00::/8"]\ntimeout_seconds = 5\n'
        '[forward.headers]\n"shop.example:8443" = "/run/secrets/shop"\n[archive]\ndays = 0\n'
    )
    environ = {"HEADGATE_FORWARD_PRIVATE_HOSTS": "shop.internal,10.0.0.7", "HEADGATE_FORWARD_PLAIN_HTTP": "true"}

    settings = Settings.load(environ, None, {})

    assert settings.forward.private_hosts == ("shop.internal", "10.0.0.7")
    assert settings.forward.private_networks == ("10.0.0.0/8", "fd00::/8")
    assert settings.forward.plain_http is True
    assert settings.forward.timeout_seconds == 5.0
    assert settings.forward.headers == {"shop.example:8443": "/run/secrets/shop"}
    assert settings.archive.days == 0


def test_load__nothing_said_of_forwarding__public_addresses_over_tls_alone() -> None:
    forward = Settings.load({}, None, {}).forward

    assert (forward.private_hosts, forward.private_networks, forward.plain_http) == ((), (), False)
    assert forward.headers == {}


def test_load__tables_and_lists_in_the_file__are_read() -> None:
    _file('allowed_hosts = ["a.example"]\n[store.table_names]\nheadgate-fanout = "chunks"\n')

    settings = Settings.load({}, None, {})

    assert settings.allowed_hosts == ("a.example",)
    assert settings.store.table_names == {"headgate-fanout": "chunks"}


def test_load__variable_of_a_test_suite_or_empty__is_ignored() -> None:
    environ = {"HEADGATE_TEST_ANYTHING": "x", "HEADGATE_LOG_LEVEL": "", "PATH": "/bin"}

    assert Settings.load(environ, None, {}).log.level == "info"


def test_load__file_named_by_variable__is_read() -> None:
    _file("drain_seconds = 30\n", "other.toml")

    assert Settings.load({"HEADGATE_CONFIG": "other.toml"}, None, {}).drain_seconds == 30.0


def test_load__file_named_by_argument__beats_the_variable() -> None:
    _file("drain_seconds = 30\n", "other.toml")

    settings = Settings.load({"HEADGATE_CONFIG": "missing.toml"}, Path("other.toml"), {})

    assert settings.drain_seconds == 30.0


def test_load__named_file_is_missing__says_which() -> None:
    assert "missing.toml" in _refusal(file=Path("missing.toml"))


def test_load__file_is_not_toml__names_file_and_line() -> None:
    message = _refusal(file=_file('home = "a"\nhttp = \n'))

    assert "headgate.toml" in message
    assert "line 2" in message


@pytest.mark.parametrize(
    ("text", "wrong", "nearest", "line"),
    [
        ("drain_second = 3\n", "drain_second ", "drain_seconds", "line 1"),
        ('[store]\nsynchronous = "FULL"\nbackends = "sqlite"\n', "store.backends", "store.backend", "line 3"),
        ('[stor]\nbackend = "sqlite"\n', "stor.backend", "store.backend", "line 2"),
        ('stor.backend = "sqlite"\n', "stor.backend", "store.backend", "line 1"),
    ],
)
def test_load__unknown_key_in_file__names_it_its_line_and_the_nearest(
    text: str, wrong: str, nearest: str, line: str
) -> None:
    message = _refusal(file=_file(text))

    assert message.startswith(wrong)
    assert f"headgate.toml {line}" in message
    assert f"did you mean '{nearest}'?" in message


def test_load__unknown_variable__names_the_nearest() -> None:
    message = _refusal({"HEADGATE_STORE_BACKENDS": "sqlite"})

    assert message.startswith("HEADGATE_STORE_BACKENDS")
    assert "did you mean 'HEADGATE_STORE_BACKEND'?" in message


def test_load__unknown_name_like_no_other__lists_all() -> None:
    assert "store.table_prefix" in _refusal(file=_file("zzzz = 1\n"))


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        ("drain_seconds", "soon", "a number from 1 to 600"),
        ("drain_seconds", "0.5", "a number from 1 to 600"),
        ("drain_seconds", "inf", "a number from 1 to 600"),
        ("drain_seconds", "nan", "a number from 1 to 600"),
        ("behind_proxy", "perhaps", "true or false"),
        ("http", "8400", "HOST:PORT"),
        ("http", "127.0.0.1:70000", "HOST:PORT"),
        ("http", "::1:8400", "HOST:PORT"),
        ("http", "[fe80::zz]:1", "HOST:PORT"),
        ("store.backend", "postgres", "one of sqlite, dynamodb"),
        ("store.table_names", "{", "a JSON object"),
        ("store.table_names", '{"a": 1}', "a JSON object"),
        ("store.aws_endpoint_url", "localhost:4566", "http://"),
        ("cache.entries_max", "-1", "a whole number from 0"),
        ("allowed_hosts", "https://a.example", "a list of host names"),
        ("allowed_hosts", "*", "a list of host names"),
        ("log.level", "loud", "one of debug, info, warning, error"),
        ("forward.private_hosts", "https://a.example", "a list of host names"),
        ("forward.private_networks", "10.0.0.0", "a list of ranges such as 10.0.0.0/8"),
        ("forward.private_networks", "everything", "a list of ranges such as 10.0.0.0/8"),
        ("forward.timeout_seconds", "0", "a number from 1 to 600"),
        ("archive.days", "-1", "a whole number from 0 to 36,500"),
        ("archive.days", "1.5", "a whole number from 0 to 36,500"),
    ],
)
def test_load__value_not_allowed_in_variable__names_key_variable_value_and_what_is(
    key: str, text: str, allowed: str
) -> None:
    variable = "HEADGATE_" + key.replace(".", "_").upper()

    message = _refusal({variable: text})

    assert message.startswith(f"{key} (variable {variable}): {text!r} is not allowed")
    assert allowed in message


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('drain_seconds = "10"', "drain_seconds"),
        ("http = 8400", "http"),
        ("home = [1]", "home"),
        ("behind_proxy = 1", "behind_proxy"),
        ('allowed_hosts = "a.example"', "allowed_hosts"),
        ('[store]\ntable_names = "x"', "store.table_names"),
    ],
)
def test_load__wrong_type_in_file__names_key_and_line(text: str, key: str) -> None:
    message = _refusal(file=_file(text))

    assert message.startswith(f"{key} (headgate.toml line {text.count(chr(10)) + 1}): ")


def test_load__wrong_flag__names_the_flag() -> None:
    assert _refusal(flags={"http": "nowhere"}).startswith("http (flag --http): 'nowhere' is not allowed")
    assert _refusal(flags={"worker.threads_max": 0}).startswith("worker.threads_max (flag --threads): 0 is not")
    assert _refusal(flags={"worker.metrics": "x"}).startswith("worker.metrics (flag --metrics): 'x' is not allowed")


def test_load__bad_redis_url__does_not_repeat_the_secret() -> None:
    message = _refusal({"HEADGATE_CACHE_REDIS_URL": "hunter2"})

    assert "cache.redis_url" in message
    assert "hunter2" not in message


def test_settings__with_a_secret__repr_and_str_hide_it() -> None:
    settings = Settings.load({"HEADGATE_CACHE_REDIS_URL": "redis://:hunter2@cache/0"}, None, {})

    assert settings.cache.redis_url is not None
    assert settings.cache.redis_url.reveal() == "redis://:hunter2@cache/0"
    assert "hunter2" not in f"{settings!r} {settings}"


@pytest.mark.parametrize("key", ["http", "grpc"])
@pytest.mark.parametrize("address", ["0.0.0.0:8400", "192.168.1.5:0", "[::]:8400", "my-host:80"])
def test_load__other_address_than_loopback__is_refused_with_the_remedy(key: str, address: str) -> None:
    message = _refusal(flags={key: address})

    assert message.startswith(f"{key} = {address}: ")
    assert "reverse proxy" in message


def test_load__behind_proxy_without_allowed_hosts__is_refused() -> None:
    assert "allowed_hosts" in _refusal(flags={"http": "0.0.0.0:8400", "behind_proxy": True})


def test_load__behind_proxy_with_allowed_hosts__any_address_is_accepted() -> None:
    environ = {"HEADGATE_ALLOWED_HOSTS": "headgate.example"}

    settings = Settings.load(environ, None, {"http": "0.0.0.0:8400", "behind_proxy": True})

    assert settings.http.host == "0.0.0.0"


@pytest.mark.parametrize(
    ("environ", "missing"),
    [
        ({"HEADGATE_STORE_BACKEND": "dynamodb", "HEADGATE_STORE_BLOB_BUCKET": "b"}, "store.aws_region"),
        ({"HEADGATE_STORE_BACKEND": "dynamodb", "HEADGATE_STORE_AWS_REGION": "eu-west-1"}, "store.blob_bucket"),
        ({"HEADGATE_STORE_BLOB_BUCKET": "b"}, "store.aws_region"),
    ],
)
def test_load__aws_without_what_it_needs__says_what(environ: dict[str, str], missing: str) -> None:
    assert _refusal(environ).startswith(missing)


def test_describe__every_setting__has_all_columns_and_its_default_loads() -> None:
    rows = describe()

    assert {row.key for row in rows} >= {"home", "http", "store.backend", "cache.redis_url", "telemetry.tracing"}
    assert all(row.description.endswith(".") and row.allowed for row in rows)
    # What is written as the default must be accepted as a value, and change nothing.
    defaults = {row.variable: row.default for row in rows if row.key != "store.table_names"}
    loaded = Settings.load(defaults, None, {})
    assert msgspec.structs.replace(loaded, sources={}) == Settings.load({}, None, {})


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_is_loopback__this_machine__yes(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "10.0.0.1", "localhost.evil.example", "127.0.0.1.nip.io", "[::]", "2130706433"]
)
def test_is_loopback__anything_else__no(host: str) -> None:
    assert not is_loopback(host)


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)), st.integers(0, 65535))
def test_address__any_ip_and_port__survives_being_written_and_read(ip: object, port: int) -> None:
    address = Address(str(ip), port)

    assert Address.parse(str(address)) == address


def test_load__what_kubernetes_adds_for_a_service_named_headgate__is_passed_over() -> None:
    environ = {
        "HEADGATE_SERVICE_HOST": "10.0.0.7",
        "HEADGATE_SERVICE_PORT": "8400",
        "HEADGATE_SERVICE_PORT_GRPC": "8401",
        "HEADGATE_PORT": "tcp://10.0.0.7:8400",
        "HEADGATE_PORT_8400_TCP": "tcp://10.0.0.7:8400",
        "HEADGATE_PORT_8400_TCP_PROTO": "tcp",
        "HEADGATE_PORT_8400_TCP_ADDR": "10.0.0.7",
    }

    assert Settings.load(environ, None, {}) == Settings.load({}, None, {})


@pytest.mark.parametrize("variable", ["HEADGATE_PORT", "HEADGATE_SERVICE", "HEADGATE_PORTS"])
def test_load__a_variable_much_like_those_of_kubernetes__is_refused(variable: str) -> None:
    assert "there is no such setting" in _refusal({variable: "8400"})


@pytest.mark.parametrize("empty", ["", " "])
def test_load__empty_home__is_refused(empty: str) -> None:
    assert _refusal(flags={"home": empty}).startswith(f"home (flag --home): {empty!r} is not allowed")
    assert _refusal(file=_file(f'home = "{empty}"')).startswith("home (headgate.toml line 1): ")


def test_load__home_of_no_one__is_refused() -> None:
    assert _refusal(flags={"home": "~no-such-user/home"}).startswith("home = ~no-such-user/home: ")


def test_load__settings_file_that_cannot_be_looked_for__is_refused() -> None:
    file = Path("x" * 5000)

    assert "cannot be accessed: File name too long" in _refusal(file=file)


def test_load__one_port_for_both__is_refused_unless_it_is_any() -> None:
    assert "one port cannot serve both" in _refusal(flags={"http": "127.0.0.1:8500", "grpc": "localhost:8500"})
    assert Settings.load({}, None, {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}).grpc.port == 0


@pytest.mark.parametrize("namespace", ["two words", "x" * 101, "line\n"])
def test_load__namespace_that_is_not_one__is_refused(namespace: str) -> None:
    assert _refusal({"HEADGATE_CACHE_NAMESPACE": namespace}).startswith("cache.namespace (variable ")


@pytest.mark.parametrize(("text", "read"), [("auto", "auto"), ("3", 3)])
def test_load__serving_processes__are_a_number_or_auto(text: str, read: object) -> None:
    assert Settings.load({"HEADGATE_SERVE_PROCESSES": text}, None, {}).serve.processes == read
    assert Settings.load({}, None, {"serve.processes": text}).serve.processes == read


@pytest.mark.parametrize("text", ["0", "65", "many", "1.5"])
def test_load__serving_processes_that_are_no_number__are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"serve\.processes .* use a whole number from 1 to 64, or auto"):
        Settings.load({}, None, {"serve.processes": text})


def test_load__several_serving_processes_with_what_belongs_to_one__are_refused() -> None:
    region = {"region.name": "eu", "region.home": "eu", "region.standby": "us", "region.authority_home": "/a"}
    with pytest.raises(SettingsError, match=r"serve.processes = 2: the lease"):
        Settings.load({}, None, {"serve.processes": "2", **region})
    for processes in ("2", "auto"):
        with pytest.raises(SettingsError, match=rf"serve.processes = {processes}: .*health.intake"):
            Settings.load({}, None, {"serve.processes": processes, "health.intake": "always"})
    assert process_count(Settings.load({}, None, {"serve.processes": "auto", **region})) == 1
    assert process_count(Settings.load({}, None, {"serve.processes": "auto"})) == available_cores()
