//! What a daemon measures, and the alerts and the board over it, read by Prometheus' own tool.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    ports::Port,
    program::Daemon,
    source::repository,
    testbed::{run, scratch},
};

fn file(name: &str) -> PathBuf {
    repository().join("monitoring").join(name)
}

/// The names of our metrics in a text, without the parts of a histogram.
fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let ours = words.filter(|word| ["imagelet_", "kubelet_", "process_"].iter().any(|start| word.starts_with(start)));
    let whole =
        ours.map(|name| ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name));
    whole.map(str::to_owned).collect()
}

/// The first column of the page, which a test keeps equal to the code.
fn documented() -> BTreeSet<String> {
    let page = fs::read_to_string(repository().join("docs/metrics.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    rows.map(str::to_owned).collect()
}

fn expressions(board: &Value) -> Vec<String> {
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_alert_rules_are_valid_and_fire_when_they_should() {
    run(Command::new("promtool").args(["check", "rules"]).arg(file("imagelet-rules.yaml")), "prometheus");
    run(Command::new("promtool").args(["test", "rules"]).arg(file("imagelet-rules-test.yaml")), "prometheus");
    let read = |name| fs::read_to_string(file(name)).unwrap();
    let (rules, tests) = (read("imagelet-rules.yaml"), read("imagelet-rules-test.yaml"));
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname: {alert}, exp_alerts: []}}")), "{alert} is never silent");
        assert!(tests.contains(&format!("alertname: {alert}\n    exp_alerts:\n")), "{alert} never fires");
    }
}

#[test]
fn each_metric_of_the_rules_and_the_board_exists() {
    let board: Value = serde_json::from_str(&fs::read_to_string(file("imagelet-dashboard.json")).unwrap()).unwrap();
    let rules = fs::read_to_string(file("imagelet-rules.yaml")).unwrap();
    let rules: String =
        rules.lines().filter(|line| !line.contains("summary") && !line.contains("description")).collect();
    let used = &names_in(&rules) | &names_in(&expressions(&board).join(" "));
    let known = documented();
    assert!(used.len() > 20 && known.len() > 50, "{} of {}", used.len(), known.len());
    assert_eq!(used.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new(), "no such metrics");
}

#[test]
fn the_board_has_valid_expressions_and_panels_that_do_not_overlap() {
    let board: Value = serde_json::from_str(&fs::read_to_string(file("imagelet-dashboard.json")).unwrap()).unwrap();
    let mut taken = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        let side = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(
            side("x") + side("w") <= 24 && panel["description"].as_str().is_some_and(|text| !text.is_empty()),
            "{panel}"
        );
        for x in side("x")..side("x") + side("w") {
            for y in side("y")..side("y") + side("h") {
                assert!(taken.insert((x, y)), "{} covers another panel", panel["title"]);
            }
        }
    }
    let folder = scratch();
    let path = folder.path().join("rules.yaml");
    let mut rules = "groups:\n- name: board\n  rules:\n".to_owned();
    for (number, expression) in expressions(&board).into_iter().enumerate() {
        let expression = expression.replace("$__rate_interval", "5m");
        writeln!(rules, "  - record: board:{number}\n    expr: {}", Value::from(expression)).unwrap();
    }
    fs::write(&path, rules).unwrap();
    run(Command::new("promtool").args(["check", "rules"]).arg(&path), "prometheus");
}

#[test]
fn a_daemon_shows_itself_its_disks_and_its_pulls_in_metrics_that_prometheus_reads() {
    let (registry, folder, port) = (FakeRegistry::start(), scratch(), Port::choose());
    let image = registry.put("web:v1", &Image::marked("web", 1000));
    let address = port.address();
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--http", &address]);
    daemon.run(["pull", "-q", &image]).ok();
    let text = scrape(&address);
    for line in [
        concat!("imagelet_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1\n"),
        "imagelet_pulls_total{outcome=\"pulled\"} 1\n",
        "imagelet_gc_threshold_percent{threshold=\"high\"} 85\n",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    for name in [
        "process_resident_memory_bytes ",
        "process_cpu_seconds_total ",
        "process_start_time_seconds ",
        "imagelet_pull_received_bytes_total ",
        "imagelet_filesystem_capacity_bytes{filesystem=\"images\"} ",
        "imagelet_filesystem_available_bytes{filesystem=\"images\"} ",
        "imagelet_filesystem_used_bytes{filesystem=\"images\"} ",
    ] {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        assert!(value.is_some_and(|value| value.parse::<f64>().unwrap() > 0.0), "{name}{value:?}");
    }
    let shown: BTreeSet<String> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).map(str::to_owned).collect();
    assert_eq!(
        shown.difference(&documented()).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "not on the page of metrics"
    );
    check_metrics(&text);
}

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    body.to_owned()
}

/// The tool complains about names as well; those that it does not like are the kubelet's.
fn check_metrics(text: &str) {
    let mut tool = Command::new("promtool");
    tool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tool = tool.spawn().unwrap_or_else(|error| panic!("promtool (Debian package prometheus): {error}"));
    tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let ours: Vec<&str> = said.lines().filter(|line| !line.starts_with("kubelet_")).collect();
    assert_eq!(ours, Vec::<&str>::new());
}
