//! Everything that is printed for programs has one style: keys in camelCase, moments as RFC 3339 in UTC, bytes and
//! durations as integers whose name says the unit, and nothing as a language's library happens to write it.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

use crate::{
    fake_registry::FakeRegistry,
    images::Image,
    program::{Daemon, Outcome, with_store},
    scripted::{self, Runtime, Script},
    testbed::{scratch, wait_until},
};

/// Objects whose keys are names of something else: labels of an image, a kubelet's signals, settings.
const MAPS: [&str; 3] = ["labels", "annotations", "value"];
/// Words by which a key says that its number is a duration, and those that say its unit.
const DURATION_WORDS: [&str; 9] =
    ["took", "elapsed", "remaining", "waited", "duration", "idle", "age", "grace", "after"];
const UNITS: [&str; 3] = ["Seconds", "Ms", "Bytes"];

/// What is wrong in the documents seen so far, each thing once.
#[derive(Default)]
struct Style {
    wrong: BTreeSet<String>,
    documents: usize,
    moments: usize,
}

impl Style {
    /// Looks at what a command printed: one document, or one a line.
    fn look(&mut self, command: &str, outcome: &Outcome) {
        let whole = serde_json::from_str::<Value>(&outcome.stdout).map(|document| vec![document]);
        let documents = whole.or_else(|_| outcome.stdout.lines().map(serde_json::from_str).collect());
        match documents {
            Ok(documents) if !documents.is_empty() => {
                self.documents += documents.len();
                for document in &documents {
                    self.walk(command, "", document);
                }
            }
            _ => drop(self.wrong.insert(format!("{command}: not JSON: {:?} {}", outcome.stdout, outcome.stderr))),
        }
        // What a command says beside its data is for people, not a line of a log.
        if outcome
            .stderr
            .lines()
            .any(|line| line.starts_with('{') || line.contains(" ERROR ") || line.contains(" WARN "))
        {
            self.wrong.insert(format!("{command}: a log on stderr: {}", outcome.stderr));
        }
    }

    fn walk(&mut self, path: &str, key: &str, value: &Value) {
        match value {
            // As its builder wrote it.
            Value::Object(_) if key == "config" && path.ends_with(".details.config") => {}
            Value::Object(fields) => {
                for (name, field) in fields {
                    let is_camel = name.starts_with(|c: char| c.is_ascii_lowercase())
                        && name.chars().all(|c| c.is_ascii_alphanumeric());
                    if !is_camel && !MAPS.contains(&key) {
                        self.wrong.insert(format!("{path}: the key `{name}`"));
                    }
                    if ["secs", "nanos", "secsSinceEpoch", "nanosSinceEpoch"].contains(&name.as_str()) {
                        self.wrong.insert(format!("{path}: {value}"));
                    }
                    self.walk(&format!("{path}.{name}"), name, field);
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.walk(&format!("{path}[]"), key, item);
                }
            }
            Value::String(text) => {
                let begins_as_date = text.len() > 10 && text.as_bytes()[4] == b'-' && text.as_bytes()[7] == b'-';
                if begins_as_date && text[..4].bytes().all(|byte| byte.is_ascii_digit()) {
                    self.moments += 1;
                    if !is_rfc_3339(text) {
                        self.wrong.insert(format!("{path}: the moment {text:?}"));
                    }
                }
            }
            Value::Number(number) => {
                let is_duration = words(key).iter().any(|word| DURATION_WORDS.contains(&word.as_str()));
                if is_duration && !UNITS.iter().any(|unit| key.ends_with(unit)) {
                    self.wrong.insert(format!("{path}: a duration without a unit: {number}"));
                }
                if ["At", "Until", "Since", "time", "until", "since"].iter().any(|word| key.ends_with(word)) {
                    self.wrong.insert(format!("{path}: the moment {number}"));
                }
                if number.as_i64().is_none() && number.as_u64().is_none() && !key.ends_with("Seconds") && key != "worth"
                {
                    self.wrong.insert(format!("{path}: {number} is not an integer"));
                }
            }
            Value::Bool(_) | Value::Null => {}
        }
    }
}

/// The words of a key in camelCase.
fn words(key: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in key.chars() {
        if c.is_ascii_uppercase() {
            words.push(String::new());
        }
        words.last_mut().expect("there is one").push(c.to_ascii_lowercase());
    }
    words
}

/// `2026-02-28T23:59:59Z`, with a fraction where one is known.
fn is_rfc_3339(text: &str) -> bool {
    let Some(time) = text.strip_suffix('Z') else { return false };
    let (whole, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let shape: String = whole.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00" && !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit())
}

#[test]
fn all_documents_have_one_style() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let put = |name: &str| registry.put(name, &Image::marked(name, 2000).labelled("org.example.Kind", "test"));
    let [web, spare, gone, pinned] = ["web:v1", "spare:v1", "gone:v1", "pinned:v1"].map(put);
    let config = folder.path().join("config.yaml");
    let text = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageMinimumGCAge: 1ms\n\
                gc: {enabled: false, leaseFor: 0s, keep: [{image: 'docker.io/library/kept*', for: 1h}]}\n\
                nodeStatusMaxImages: -1\n";
    fs::write(&config, text).unwrap();
    let pod = folder.path().join("pod.yaml");
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop}}\nspec:\n  containers:\n  \
         - {{name: a, image: '{web}'}}\n  - {{name: b, image: '{}'}}\n",
        registry.name("absent:v1")
    );
    fs::write(&pod, manifest).unwrap();
    let (store, config, pod) = (folder.path().join("store"), config.to_str().unwrap(), pod.to_str().unwrap());
    let mut style = Style::default();
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", config]);
    let mut look = |arguments: &[&str]| {
        let outcome = daemon.run(["-o", "json"].iter().chain(arguments));
        style.look(&arguments.join(" "), &outcome);
        outcome
    };
    for image in [&web, &spare, &gone, &pinned] {
        look(&["pull", image]);
    }
    look(&["pull", &registry.name("absent:v1")]);
    look(&["ensure", "-f", pod]);
    look(&["pin", &pinned]);
    look(&["pin", "reg.test/nothing*"]);
    look(&["unpin", "reg.test/nothing*"]);
    let target = folder.path().join("mounted");
    fs::create_dir(&target).unwrap();
    look(&["mount", &web, target.to_str().unwrap()]);
    for arguments in [
        &["ls"][..],
        &["ls", "--digests"],
        &["inspect", &web],
        &["df", "-v"],
        &["pins"],
        &["gc", "--dry-run", "--free", "1k"],
        &["gc", "--dry-run", "--all-unused", "--now"],
        &["untag", &gone],
        &["rm", &spare],
        &["gc", "--all-unused", "--now"],
        &["gc", "--free", "1Ti"],
        &["verify"],
        &["status", "-v"],
        &["why", &web],
        &["why", &spare],
        &["events"],
        &["config", "show"],
        &["config", "check", config],
        &["version"],
    ] {
        look(arguments);
    }
    look(&["unmount", target.to_str().unwrap()]);
    drop(daemon);
    // What is on record, read without a daemon, and by a command that finds things wrong.
    for arguments in
        [&["ls", "-o", "json"][..], &["df", "-o", "json"], &["status", "-o", "json"], &["why", &web, "-o", "json"]]
    {
        style.look(&format!("--store {}", arguments.join(" ")), &with_store(&store, arguments));
    }
    over_a_runtime(&mut style, folder.path());
    assert!(style.documents > 40 && style.moments > 20, "{} documents, {} moments", style.documents, style.moments);
    assert!(style.wrong.is_empty(), "{}", style.wrong.into_iter().collect::<Vec<_>>().join("\n"));
}

/// The stream of a daemon over a runtime, with a pull that does not end.
fn over_a_runtime(style: &mut Style, folder: &Path) {
    let image = scripted::image("reg.test/app:v1", 5_000_000);
    let containers = vec![scripted::container("web", "reg.test/app:v1")];
    let runtime = Runtime::start(folder, Script { images: vec![image], containers, ..Script::default() });
    let config = folder.join("runtime.yaml");
    let text = format!(
        "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\ngc: {{enabled: false}}\n\
         imageService: {{cri: {{endpoint: '{}'}}}}\nstore: {{directory: '{}'}}\n",
        runtime.endpoint(),
        folder.join("state").display()
    );
    fs::write(&config, text).unwrap();
    let daemon = Daemon::start(folder, ["--config", config.to_str().unwrap()]);
    let mut pull = daemon.command();
    let mut pull =
        crate::testbed::Part::start(pull.args(["pull", "reg.test/slow:v1"]), "of imagelet", folder.join("pull"));
    let stream = folder.join("stream");
    let mut follower = daemon.command();
    follower.args(["events", "-f", "-o", "json"]).stdout(fs::File::create(&stream).unwrap());
    let mut follower = follower.spawn().unwrap();
    wait_until("progress", || fs::read_to_string(&stream).unwrap().matches("\"progress\"").count() > 1);
    for arguments in [
        &["ls"][..],
        &["inspect", "reg.test/app:v1"],
        &["df"],
        &["status"],
        &["why", "reg.test/app:v1"],
        &["gc", "--dry-run"],
    ] {
        style.look(&format!("runtime {}", arguments.join(" ")), &daemon.run(["-o", "json"].iter().chain(arguments)));
    }
    follower.kill().unwrap();
    follower.wait().unwrap();
    pull.kill();
    let whole = fs::read_to_string(&stream).unwrap();
    let whole = whole[..=whole.rfind('\n').unwrap()].to_owned();
    style.look("events -f", &Outcome { code: 0, stdout: whole, stderr: String::new() });
}

#[test]
fn a_command_that_finds_a_damaged_file_says_so_to_people() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let image = registry.put("web:v1", &Image::marked("web", 1000));
    let store = folder.path().join("store");
    with_store(&store, ["pull", &image]).ok();
    let record = store.join("state/inventory");
    for file in fs::read_dir(&record).unwrap() {
        fs::write(file.unwrap().path(), b"{").unwrap();
    }
    for arguments in [&["ls"][..], &["pin", "web:v1"]] {
        let outcome = with_store(&store, arguments);
        let lines: Vec<&str> = outcome.stderr.lines().collect();
        let is_for_people = |line: &&str| {
            ["warning: ", "note: ", "error: ", "hint: ", "  because: "].iter().any(|word| line.starts_with(word))
        };
        assert!(lines.iter().all(is_for_people), "{arguments:?}: {}", outcome.stderr);
    }
}
