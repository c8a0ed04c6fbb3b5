//! The HTTP API of a daemon: its document and its answers, the clients it accepts, health, and the stream of events.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    ports::Port,
    program::{Daemon, program, run, write_store_config},
    testbed::{scratch, wait_until},
};

const TOKEN: &str = "a-token-of-a-test-with-40-characters-000";

pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.head, self.body))
    }
}

/// One request, with a `Host` header among `headers` unless it is the address.
fn request(address: &str, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    let host =
        if headers.to_ascii_lowercase().contains("host:") { String::new() } else { format!("Host: {address}\r\n") };
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\n{host}{headers}Content-Length: {length}\r\n\r\n{body}").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("an answer has a status");
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

pub(crate) fn get(address: &str, path: &str) -> Answer {
    request(address, "GET", path, "", "")
}

fn bearer() -> String {
    format!("Authorization: Bearer {TOKEN}\r\n")
}

/// A daemon over a store of its own, with these lines below `http:` of its configuration.
fn daemon(folder: &Path, port: &Port, http: &str) -> Daemon {
    let config = write_store_config(folder, "");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}http: {{address: \"{}\"{http}}}\n", port.address())).unwrap();
    let daemon = Daemon::start(folder, ["--config", &config, "--store", folder.join("store").to_str().unwrap()]);
    wait_until("the HTTP listener", || TcpStream::connect(port.address()).is_ok());
    wait_until("the first pass", || get(&port.address(), "/readyz").status == 200);
    daemon
}

fn write_token(folder: &Path) -> String {
    let path = folder.join("token");
    fs::write(&path, format!("{TOKEN}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Where a value differs from its schema. Every field has to be declared, and every required one to be present.
fn differences(document: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = document.pointer(&reference[1..]).unwrap_or_else(|| panic!("{reference} leads nowhere"));
        return differences(document, target, value, place);
    }
    for word in ["anyOf", "oneOf"] {
        if let Some(choices) = schema[word].as_array() {
            let found = choices.iter().map(|schema| differences(document, schema, value, place));
            return found.min_by_key(Vec::len).unwrap_or_default();
        }
    }
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let accepted: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is_number = name == "integer" && accepted.contains(&"number");
    if !(accepted.is_empty() || accepted.contains(&name) || is_number) {
        return vec![format!("{place} is {name}, not {accepted:?}")];
    }
    match value {
        Value::Array(values) => {
            let each = values.iter().enumerate();
            each.flat_map(|(at, value)| differences(document, &schema["items"], value, &format!("{place}[{at}]")))
                .collect()
        }
        Value::Object(fields) if schema["properties"].is_object() => {
            let mut found = Vec::new();
            for (name, value) in fields {
                match schema["properties"].get(name) {
                    Some(schema) => found.extend(differences(document, schema, value, &format!("{place}.{name}"))),
                    None => found.push(format!("{place}.{name} is not declared")),
                }
            }
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            found.extend(
                required.filter(|name| !fields.contains_key(*name)).map(|name| format!("{place}.{name} is missing")),
            );
            found
        }
        _ => Vec::new(),
    }
}

#[test]
fn every_route_of_the_document_answers_as_its_schema_says() {
    let (folder, port, registry) = (scratch(), Port::choose(), FakeRegistry::start());
    let name = registry.put("team/app:v1", &Image::marked("app", 100_000));
    let daemon = daemon(folder.path(), &port, "");
    daemon.run(["pull", &name]).ok();
    daemon.run(["pull", &registry.put("other:v1", &Image::marked("other", 5_000))]).ok();
    daemon.run(["pin", &name]).ok();
    daemon.run(["pull", "127.0.0.1:1/away:v1"]).refused(&[]);
    let address = port.address();
    let document = get(&address, "/api/v1/openapi.json").json();
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some(route) = methods.get("get").filter(|_| path != "/api/v1/events") else { continue };
        let answer = get(&address, &path.replace("{image}", &name));
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert!(answer.head.contains("content-type: application/json"), "{path}: {}", answer.head);
        let schema = &route["responses"]["200"]["content"]["application/json"]["schema"];
        assert_eq!(differences(&document, schema, &answer.json(), path), Vec::<String>::new());
        asked += 1;
    }
    assert!(asked >= 11, "{asked} routes");

    let page = get(&address, "/api/v1/images?limit=1").json();
    assert_eq!((&page["total"], page["images"].as_array().unwrap().len()), (&json!(2), 1));
    let next = page["next"].as_str().expect("there is a second page").replace(':', "%3A");
    let last = get(&address, &format!("/api/v1/images?limit=1&after={next}")).json();
    assert!(last["next"].is_null() && last["images"][0]["id"] != page["images"][0]["id"], "{last}");
    let disk = get(&address, "/api/v1/disk").json();
    assert!(
        disk["capacity"].as_u64() > Some(0) && disk["highPercent"] == 85 && disk["pinnedSize"].as_u64() > Some(0),
        "{disk}"
    );
    let decisions = get(&address, "/api/v1/decisions?limit=2").json();
    assert_eq!(
        (&decisions["decisions"][0]["what"], decisions["decisions"].as_array().unwrap().len()),
        (&json!("pull failed"), 2)
    );
    let plan = get(&address, "/api/v1/gc/plan?allUnused=true").json();
    assert_eq!((&plan["dryRun"], plan["images"].as_array().unwrap().len()), (&json!(true), 2));

    let schema = json!({ "$ref": "#/components/schemas/Failure" });
    for (path, status, words) in [
        ("/api/v1/images?limit=9999", 400, "a number from 0 to 1000"),
        ("/api/v1/images?size=1", 400, "there is no parameter `size`"),
        ("/api/v1/images/absent.example/app:v1", 404, "no image"),
        ("/api/v1/decisions/absent.example/app:v1", 404, "no record"),
        ("/api/v1/gc/plan?high=10&low=20", 400, "low"),
        ("/api/v1/nothing", 404, "nothing at this path"),
    ] {
        let answer = get(&address, path);
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert!(answer.body.to_lowercase().contains(words), "{path}: {}", answer.body);
        assert_eq!(differences(&document, &schema, &answer.json(), path), Vec::<String>::new());
    }
}

#[test]
fn the_disk_shows_an_image_as_soon_as_its_pull_ends() {
    let (folder, port, registry) = (scratch(), Port::choose(), FakeRegistry::start());
    let daemon = daemon(folder.path(), &port, "");
    daemon.run(["pull", "-q", &registry.put("app:v1", &Image::marked("app", 100_000))]).ok();
    let disk = get(&port.address(), "/api/v1/disk").json();
    assert!(disk["unusedSize"].as_u64() >= Some(100_000), "{disk}");
}

#[test]
fn a_document_that_differs_from_its_schema_is_found() {
    let document = json!({ "defs": { "name": { "type": ["string", "null"] } } });
    let schema = json!({
        "type": "object",
        "required": ["count"],
        "properties": { "count": { "type": "integer" }, "name": { "$ref": "#/defs/name" }, "rows": { "items": { "anyOf": [{ "type": "null" }, { "type": "number" }] } } },
    });
    let found = |value: Value| differences(&document, &schema, &value, "it");
    assert_eq!(found(json!({ "count": 1, "name": null, "rows": [1, null, 0.5] })), Vec::<String>::new());
    assert_eq!(found(json!({ "name": 3 })), ["it.name is integer, not [\"string\", \"null\"]", "it.count is missing"]);
    assert_eq!(found(json!({ "count": 0.5, "rows": ["a"], "x": 1 })).len(), 3);
}

#[test]
fn without_a_token_only_loopback_under_its_own_names_is_answered_and_nothing_is_changed() {
    let (folder, port) = (scratch(), Port::choose());
    let daemon = daemon(folder.path(), &port, ", hostNames: [node.example]");
    let address = port.address();
    for (host, status) in [("localhost", 200), ("node.example:80", 200), ("[::1]", 200), ("evil.example", 421)] {
        for path in ["/", "/metrics", "/api/v1/status", "/assets/dashboard.js"] {
            let answer = request(&address, "GET", path, &format!("Host: {host}\r\n"), "");
            assert_eq!(answer.status, status, "{host}{path}: {}", answer.body);
            assert!(
                answer.head.contains("content-security-policy: default-src 'none'; script-src 'self'"),
                "{}",
                answer.head
            );
            assert!(answer.head.contains("x-content-type-options: nosniff"), "{}", answer.head);
        }
    }
    assert_eq!(request(&address, "GET", "/livez", "Host: evil.example\r\n", "").body, "ok\n");
    for (method, path) in [("POST", "/api/v1/gc"), ("POST", "/api/v1/pins"), ("DELETE", "/api/v1/pins?pattern=a")] {
        let answer = request(&address, method, path, "X-Imagelet-Action: 1\r\n", "{\"pattern\":\"a\"}");
        assert_eq!(answer.status, 403, "{}", answer.body);
        assert!(answer.body.contains("http.actions"), "{}", answer.body);
    }
    assert_eq!(daemon.run(["pins", "-o", "json"]).json()["pins"], json!([]));

    let config = folder.path().join("open.yaml");
    for (http, words) in [
        ("address: \"0.0.0.0:9100\"", "needs http.tokenFile"),
        ("address: \"127.0.0.1:0\", actions: true", "http.actions needs http.tokenFile"),
    ] {
        fs::write(
            &config,
            format!("apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nhttp: {{{http}}}\n"),
        )
        .unwrap();
        run(program().args(["serve", "--config"]).arg(&config).arg("--store").arg(folder.path().join("other")))
            .refused(&[words]);
    }
}

#[test]
fn a_token_opens_reading_and_with_the_setting_and_a_header_also_actions() {
    let (folder, port) = (scratch(), Port::choose());
    let token = write_token(folder.path());
    let daemon = daemon(folder.path(), &port, &format!(", actions: true, tokenFile: {token}"));
    let address = port.address();
    for path in ["/metrics", "/api/v1/status", "/api/v1/events"] {
        let answer = get(&address, path);
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
        let wrong = request(&address, "GET", path, &bearer().replace("000", "001"), "");
        assert_eq!(wrong.status, 401, "{path}");
    }
    assert_eq!(request(&address, "GET", "/metrics", &bearer(), "").status, 200);
    // Probes need no token; why a check failed does.
    assert_eq!((get(&address, "/livez").body, get(&address, "/readyz?verbose").body), ("ok\n".into(), "ok\n".into()));
    let verbose = request(&address, "GET", "/readyz?verbose", &bearer(), "").body;
    assert_eq!(verbose, "[+]store ok\n[+]state ok\n[+]inventory ok\nreadyz check passed\n");

    // A browser asks its user for the token.
    let page = request(&address, "GET", "/", "Accept: text/html\r\n", "");
    assert!(page.status == 401 && page.head.contains("www-authenticate: basic realm="), "{}", page.head);
    let login = format!("Authorization: Basic {}\r\n", BASE64_STANDARD.encode(format!("any:{TOKEN}")));
    assert_eq!(request(&address, "GET", "/", &login, "").status, 200);

    let pin = |headers: &str| request(&address, "POST", "/api/v1/pins", headers, "{\"pattern\":\"r.example/*\"}");
    let action = "X-Imagelet-Action: 1\r\n";
    assert_eq!(pin(action).status, 401);
    assert_eq!(pin(&login).status, 403, "a form of a foreign page can do so much");
    assert_eq!(pin(&format!("{login}{action}Sec-Fetch-Site: cross-site\r\n")).status, 403);
    assert_eq!(daemon.run(["pins", "-o", "json"]).json()["pins"], json!([]));
    let pinned = pin(&format!("{login}{action}"));
    assert_eq!((pinned.status, &pinned.json()["changed"]), (200, &json!(true)), "{}", pinned.body);
    assert_eq!(daemon.run(["pins", "-o", "json"]).json()["pins"][0]["pattern"], "r.example/*");
    let unpinned =
        request(&address, "DELETE", "/api/v1/pins?pattern=r.example%2F*", &format!("{}{action}", bearer()), "");
    assert_eq!((unpinned.status, &unpinned.json()["changed"]), (200, &json!(true)), "{}", unpinned.body);
    let collected = request(&address, "POST", "/api/v1/gc", &format!("{}{action}", bearer()), "{\"allUnused\":true}");
    assert_eq!((collected.status, &collected.json()["dryRun"]), (200, &json!(false)), "{}", collected.body);
    for body in ["{\"free\":\"much\"}", "{\"dry_run\":true}"] {
        let wrong = request(&address, "POST", "/api/v1/gc", &format!("{}{action}", bearer()), body);
        assert_eq!(wrong.status, 400, "{}", wrong.body);
    }
    let wrong = request(&address, "POST", "/api/v1/gc?dryRun=true", &format!("{}{action}", bearer()), "");
    assert_eq!(wrong.status, 400, "{}", wrong.body);

    // A stream ends with the token that opened it.
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n{}\r\n", bearer()).unwrap();
    let mut stream = BufReader::new(stream);
    read_until(&mut stream, |line| line == "\r\n");

    // A changed token is in force after a reload, and the old one opens nothing.
    fs::write(&token, TOKEN.replace('-', "+")).unwrap();
    daemon.part.signal(rustix::process::Signal::HUP);
    wait_until("the reload", || daemon.part.log().contains("configuration reloaded"));
    assert_eq!(request(&address, "GET", "/metrics", &bearer(), "").status, 401);
    assert_eq!(request(&address, "GET", "/", &login, "").status, 401);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the stream ends");
    assert!(!daemon.part.log().contains(TOKEN));
}

#[test]
fn a_reload_withdraws_actions_and_keeps_the_token_until_the_next_start() {
    let (folder, port) = (scratch(), Port::choose());
    let token = write_token(folder.path());
    let daemon = daemon(folder.path(), &port, &format!(", actions: true, tokenFile: {token}"));
    let address = port.address();
    let collect = || {
        let headers = format!("{}X-Imagelet-Action: 1\r\n", bearer());
        request(&address, "POST", "/api/v1/gc", &headers, "{\"dryRun\":true}").status
    };
    assert_eq!(collect(), 200);
    let config = folder.path().join("config.yaml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace(&format!(", actions: true, tokenFile: {token}"), "")).unwrap();
    daemon.part.signal(rustix::process::Signal::HUP);
    wait_until("the reload", || daemon.part.log().contains("configuration reloaded"));
    assert_eq!((collect(), get(&address, "/metrics").status), (403, 401));
    let log = daemon.part.log();
    assert!(log.contains("\"settings\":\"http.tokenFile\""), "{log}");
}

#[test]
fn a_daemon_whose_runtime_is_away_is_alive_and_not_ready() {
    let (folder, port) = (scratch(), Port::choose());
    let runtime = format!("unix://{}", folder.path().join("absent.sock").display());
    let config = write_store_config(folder.path(), &format!("directory: {}", folder.path().join("state").display()));
    let arguments = ["--config", &config, "--runtime-endpoint", &runtime, "--http", &port.address()];
    let _daemon = Daemon::start(folder.path(), arguments);
    wait_until("the HTTP listener", || TcpStream::connect(port.address()).is_ok());
    let address = port.address();
    for path in ["/livez?verbose", "/livez?verbose=1"] {
        assert_eq!(get(&address, path).body, "[+]ping ok\nlivez check passed\n");
    }
    let ready = get(&address, "/readyz");
    assert_eq!((ready.status, ready.body.as_str()), (503, "failed: runtime, inventory\n"));
    let verbose = get(&address, "/readyz?verbose").body;
    assert!(verbose.contains("[-]runtime failed: ") && verbose.contains("[+]state ok\n"), "{verbose}");
    // The page says so, too.
    let page = get(&address, "/");
    assert!(page.status == 200 && page.body.contains("class=\"problem\""), "{}", page.body);
    assert!(!page.body.contains("There are no images"), "it is not known: {}", page.body);
}

/// Reads events until one fits; returns all up to it.
fn read_until(stream: &mut BufReader<TcpStream>, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let mut read = Vec::new();
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended: {read:?}");
        let is_last = fits(&line);
        read.push(line);
        if is_last {
            return read;
        }
    }
}

#[test]
fn a_stream_has_recorded_events_progress_and_later_events_and_continues_where_a_client_was() {
    let (folder, port, registry) = (scratch(), Port::choose(), FakeRegistry::start());
    let daemon = daemon(folder.path(), &port, "");
    daemon.run(["pull", &registry.put("first:v1", &Image::marked("first", 1000))]).ok();
    let open = |headers: &str| {
        let mut stream = TcpStream::connect(port.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").unwrap();
        BufReader::new(stream)
    };
    let mut stream = open("");
    let head = read_until(&mut stream, |line| line == "\r\n").concat().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200 ") && head.contains("content-type: text/event-stream"), "{head}");
    let recorded = read_until(&mut stream, |line| line.contains("\"Pulled\""));
    assert!(recorded.iter().any(|line| line == "event: event\n"), "{recorded:?}");
    let id =
        recorded.iter().rev().find_map(|line| line.strip_prefix("id: ")).expect("an event has an id").trim().to_owned();

    let image = Image::marked("slow", 4_000_000);
    let name = registry.put("slow:v1", &image);
    let held = registry.hold("slow", &image.layers[0].digest);
    let mut pull = daemon.command().args(["pull", "-q", &name]).spawn().unwrap();
    held.until_asked();
    let progress = read_until(&mut stream, |line| line.contains("\"type\":\"progress\""));
    assert!(progress.iter().any(|line| line == "event: progress\n"), "{progress:?}");
    drop(held);
    assert!(pull.wait().unwrap().success());
    read_until(&mut stream, |line| line.contains("\"Pulled\"") && line.contains("slow:v1"));

    let mut again = open(&format!("Last-Event-ID: {id}\r\n"));
    let later = read_until(&mut again, |line| line.contains("\"Pulled\""));
    assert!(!later.concat().contains("first:v1") && later.concat().contains("slow:v1"), "{later:?}");
    // A stop ends the streams.
    assert!(daemon.stop(rustix::process::Signal::TERM).success());
    let mut rest = String::new();
    drop(again.read_to_string(&mut rest));
}
