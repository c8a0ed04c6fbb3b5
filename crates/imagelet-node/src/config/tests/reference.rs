//! Checks that `docs/configuration.md` matches the doc comments of the configuration.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use serde_json::Value;

use crate::config::{
    Environment, Sources,
    keys_and_defaults::{API_VERSION, KIND},
};

const PAGE: &str = "../../docs/configuration.md";
const SOURCE: &str = include_str!("../keys_and_defaults.rs");

/// A field of a section in the source.
struct Field {
    key: String,
    kind: String,
    comment: String,
}

/// The structs with their fields, parsed from the source, which alone has the comments.
fn structs() -> BTreeMap<String, Vec<Field>> {
    let mut found: BTreeMap<String, Vec<Field>> = BTreeMap::new();
    let (mut current, mut comment, mut key) = (None::<String>, String::new(), None::<String>);
    for line in SOURCE.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(" {").filter(|name| name.chars().all(char::is_alphanumeric)) {
            current = Some(name.to_owned());
            comment.clear();
        } else if line == "}" {
            current = None;
        } else if let Some(text) = line.strip_prefix("///") {
            comment.push_str(text);
        } else if let Some(rest) = line.strip_prefix("#[serde(rename = \"") {
            key = rest.split('"').next().map(str::to_owned);
        } else if let (Some(current), Some((name, kind))) = (&current, line.split_once(": ")) {
            let name = name.rsplit(' ').next().unwrap_or_default();
            let key = key.take().unwrap_or_else(|| camel_case(name.trim_start_matches("r#")));
            let kind = kind.trim_end_matches(',').split(" = ").next().unwrap_or_default();
            let kind = kind.strip_prefix("Option<").map_or(kind, |kind| kind.trim_end_matches('>')).to_owned();
            let comment = std::mem::take(&mut comment).trim().to_owned();
            found.entry(current.clone()).or_default().push(Field { key, kind, comment });
        } else if line.is_empty() {
            comment.clear();
        }
    }
    found
}

fn camel_case(name: &str) -> String {
    let mut is_upper = false;
    let letters = name.chars().filter_map(|letter| {
        let is_gap = letter == '_';
        let shown = if is_upper { letter.to_ascii_uppercase() } else { letter };
        is_upper = is_gap;
        (!is_gap).then_some(shown)
    });
    letters.collect()
}

fn type_word(kind: &str) -> &str {
    match kind {
        "i32" | "i64" => "number",
        "bool" => "true or false",
        "GoDuration" => "duration",
        "PathBuf" => "path",
        "Vec<String>" => "list of text",
        "Vec<KeepKeys>" | "Vec<ProxyKeys>" => "list of rules",
        "PinnedKeys" => "list or map of text",
        "BTreeMap<String, String>" => "map of text",
        _ => "text",
    }
}

fn rows(
    structs: &BTreeMap<String, Vec<Field>>,
    name: &str,
    prefix: &str,
    defaults: &BTreeMap<String, Value>,
    page: &mut String,
) {
    for field in &structs[name] {
        let key = if prefix.is_empty() { field.key.clone() } else { format!("{prefix}.{}", field.key) };
        if structs.contains_key(&field.kind) {
            let key = if matches!(field.kind.as_str(), "KubeletKeys" | "OwnKeys") { "" } else { &key };
            rows(structs, &field.kind, key, defaults, page);
            continue;
        }
        let default = match defaults.get(&key) {
            None => "absent".into(),
            Some(Value::String(text)) if text.is_empty() => "empty".into(),
            Some(Value::String(text)) => format!("`{text}`"),
            Some(Value::Array(list)) if list.is_empty() => "empty".into(),
            Some(Value::Object(map)) if map.is_empty() => "empty".into(),
            Some(other) => format!("`{other}`"),
        };
        writeln!(page, "| `{key}` | {} | {default} | {} |", type_word(&field.kind), field.comment)
            .expect("writing to a string cannot fail");
        if let Some(entry) = field
            .kind
            .strip_prefix("Vec<")
            .map(|entry| entry.trim_end_matches('>'))
            .filter(|entry| structs.contains_key(*entry))
        {
            rows(structs, entry, &format!("{key}[]"), defaults, page);
        }
    }
}

fn page() -> String {
    let environment = Environment { root: true, ..Environment::default() };
    let defaults = Sources::new(environment).effective().expect("defaults are a configuration");
    let defaults = defaults.into_iter().map(|one| (one.key, one.value)).collect();
    let mut page = format!(
        "# Configuration\n\n\
         <!-- Made from the comments in `crates/imagelet-node/src/config/keys_and_defaults.rs` by a test; \
         `IMAGELET_UPDATE=1 cargo test -p imagelet reference` writes it anew. -->\n\n\
         `imagelet serve --config FILE` reads YAML:\n\n\
         ```yaml\napiVersion: {API_VERSION}\nkind: {KIND}\nimageGCHighThresholdPercent: 75\nimageGCLowThresholdPercent: 70\n```\n\n\
         Every key may be left out. Keys that are not listed here are refused with their line; the kubelet's\n\
         keys about evictions are ignored. Durations are written as Go\n\
         writes them: `2m30s`, `24h`, `500ms`. A dot stands for a level: `store.directory` is `directory` below `store`.\n\
         Values come from the defaults, then a kubelet's own configuration, then the file given with `--config`, then flags;\n\
         `imagelet config show` prints the source of each value. SIGHUP reads the files again; an invalid file changes nothing.\n\
         Of the variables of the environment one that is empty is as one that is not set. `IMAGELET_STORE` beside a\n\
         configuration with a runtime is refused: `serve --store DIR` uses that store without the runtime.\n\n\
         ## The kubelet's configuration\n\n\
         `--kubelet-config FILE` reads a kubelet's file, and `--kubelet-config-dir DIR` the drop-ins of its `--config-dir`, with or\n\
         without a file: the `*.conf` files in the order of their names, also those of folders in it. As with the kubelet, a\n\
         drop-in replaces values and lists, and a null takes a value back. Of all these files only the kubelet's own keys below are read. What the kubelet accepts is\n\
         accepted: the first document counts, of a repeated key the last value, and keys of other versions are ignored.\n\n\
         `serve` and `config show` take the kubelet's flags for these keys, too, and they win over all files:\n\
         `--image-gc-high-threshold`, `--image-gc-low-threshold`, `--minimum-image-ttl-duration`, `--maximum-image-ttl-duration`,\n\
         `--serialize-image-pulls`, `--registry-qps`, `--registry-burst`, `--max-parallel-image-pulls`,\n\
         `--pod-infra-container-image`, `--feature-gates`, `--max-pods`,\n\
         `--runtime-request-timeout`, `--node-status-max-images`, `--node-status-update-frequency`,\n\
         `--local-storage-capacity-isolation`, `--event-qps`, `--event-burst`, `--container-runtime-endpoint`,\n\
         `--image-service-endpoint`. The kubelet's other flags, among them those of evictions, are ignored with a warning, so that the flags of its unit can be\n\
         copied, and so is `--kubeconfig` where neither `--node-name` nor a file names the node. Of a repeated flag the last\n\
         value counts; `--config` is imagelet's own.\n\n\
         ## Keys\n\n\
         The defaults are those of root; another user's socket is below `$XDG_RUNTIME_DIR`, the store below\n\
         `$XDG_DATA_HOME` or `~/.local/share`.\n\n\
         | key | type | default | meaning |\n|---|---|---|---|\n"
    );
    rows(&structs(), "File", "", &defaults, &mut page);
    page
}

#[test]
fn the_reference_page_is_made_of_the_comments() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = page();
    if std::env::var_os("IMAGELET_UPDATE").is_some() {
        std::fs::write(&path, &page).expect("the page is written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == page, "docs/configuration.md is old: run IMAGELET_UPDATE=1 cargo test -p imagelet reference");
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        assert!(!line.ends_with("|  |"), "a key without a comment: {line}");
    }
}
