//! Nothing is shown before it is durable, and nothing is said before it is shown (P2, P3, P5, P6, P9).

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::{
    fake_registry::FakeRegistry,
    program::program,
    soundness::{Sample, small_layer},
    testbed::scratch,
    trace::{Act, Event, events, traced},
};

/// Where a rename makes something count. `None`: it does not.
fn place(store: &Path, path: &Path) -> Option<&'static str> {
    let below = path.strip_prefix(store).ok()?.to_str()?;
    let (folder, name) = below.rsplit_once('/').unwrap_or(("", below));
    match (folder, name) {
        ("layers", _) => Some("layers"),
        ("images", _) => Some("images"),
        ("", "names.json") => Some("names"),
        ("state/image_manager/pulling", _) => Some("intents"),
        ("state/image_manager/pulled", _) => Some("records"),
        ("state/inventory", "ledger") => Some("ledger"),
        ("state/inventory", "pins.json") => Some("pins"),
        _ => None,
    }
}

fn is_below(store: &Path, path: &Path, folder: &str) -> bool {
    path.starts_with(store.join(folder))
}

/// What a trace breaks of the protocol; empty when it keeps it.
fn broken(store: &Path, trace: &[Event]) -> Vec<String> {
    let mut broken = Vec::new();
    let reply = trace.iter().find(|event| event.act == Act::Reply).map(|event| event.began);
    for event in trace {
        match &event.act {
            Act::Rename { from, to } if place(store, to).is_some() => {
                let rename = format!("line {}: `{}`", event.began + 1, to.display());
                if let Some(written) = unsynced(trace, from, event.began) {
                    broken.push(format!("{rename} is renamed before `{}` is synced", written.display()));
                }
                match folder_synced(trace, event, to) {
                    None => broken.push(format!("{rename}: its folder is never synced")),
                    Some(synced) if reply.is_some_and(|reply| event.began < reply && reply < synced) => {
                        broken.push(format!("{rename}: the reply comes before its folder is synced"));
                    }
                    Some(_) => {}
                }
                if place(store, to) == Some("names") {
                    broken.extend(not_yet_durable(store, trace, event).map(|early| format!("{rename}: {early}")));
                }
            }
            Act::Rename { from, .. } if matches!(place(store, from), Some("layers" | "images")) => {
                let names = renames(trace, |to| place(store, to) == Some("names"));
                for name in names.filter(|name| name.began < event.began) {
                    if folder_synced(trace, name, &store.join("names.json")).is_none_or(|synced| synced > event.began) {
                        broken
                            .push(format!("line {}: content goes before its names are durably gone", event.began + 1));
                    }
                }
            }
            Act::Remove(path) if is_below(store, path, "state/image_manager/pulling") => {
                for record in renames(trace, |to| place(store, to) == Some("records")) {
                    if record.began > event.began
                        || folder_synced(trace, record, target(record)).is_none_or(|at| at > event.began)
                    {
                        broken.push(format!("line {}: the intent goes before the record is durable", event.began + 1));
                    }
                }
            }
            Act::Remove(path) if is_below(store, path, "state/image_manager/pulled") => {
                let removal = format!("line {}: `{}` is removed", event.began + 1, path.display());
                match folder_synced(trace, event, path) {
                    None => broken.push(format!("{removal}, and its folder is never synced")),
                    Some(synced) if reply.is_some_and(|reply| event.began < reply && reply < synced) => {
                        broken.push(format!("{removal}, and the reply comes before its folder is synced"));
                    }
                    Some(_) => {}
                }
            }
            _ => {}
        }
    }
    if let Some(connect) = trace.iter().find(|event| event.act == Act::Connect) {
        let mut intents = renames(trace, |to| place(store, to) == Some("intents"));
        let durable =
            intents.any(|intent| folder_synced(trace, intent, target(intent)).is_some_and(|at| at < connect.began));
        if !durable {
            broken.push(format!("line {}: a registry is asked before the intent is durable", connect.began + 1));
        }
    }
    broken
}

fn renames<'a>(trace: &'a [Event], wanted: impl Fn(&Path) -> bool + 'a) -> impl Iterator<Item = &'a Event> {
    trace.iter().filter(move |event| matches!(&event.act, Act::Rename { to, .. } if wanted(to)))
}

fn target(event: &Event) -> &Path {
    match &event.act {
        Act::Rename { to, .. } => to,
        _ => Path::new(""),
    }
}

/// Something at or below `path` that no sync since its last write covers before the line `until`.
fn unsynced(trace: &[Event], path: &Path, until: usize) -> Option<PathBuf> {
    trace.iter().filter(|event| event.began < until && event.writes_below(path)).find_map(|write| {
        let Act::Write(written) = &write.act else { return None };
        let covers = |sync: &&Event| match &sync.act {
            Act::Sync(synced) => synced == written,
            Act::SyncAll => true,
            _ => false,
        };
        let synced = trace.iter().filter(covers).any(|sync| sync.began > write.ended && sync.ended < until);
        (!synced).then(|| written.clone())
    })
}

/// The line at which the folder is durable that something was renamed into, or removed from.
fn folder_synced(trace: &[Event], change: &Event, path: &Path) -> Option<usize> {
    let folder = path.parent()?;
    let mut syncs = trace.iter().filter(|event| matches!(&event.act, Act::Sync(synced) if synced == folder));
    syncs.find(|sync| sync.began > change.ended).map(|sync| sync.ended)
}

/// The layers and images whose folders are not synced when the names are replaced.
fn not_yet_durable<'a>(store: &'a Path, trace: &'a [Event], names: &'a Event) -> impl Iterator<Item = String> + 'a {
    renames(trace, |to| matches!(place(store, to), Some("layers" | "images")))
        .filter(|content| content.began < names.began)
        .filter(|content| folder_synced(trace, content, target(content)).is_none_or(|synced| synced > names.began))
        .map(|content| format!("`{}` is not durable yet", target(content).display()))
}

/// Runs a command over the store, checks its order, and returns where it renamed something to, with `forgotten` for removed
/// pull records.
fn checked(store: &Path, arguments: &[&str]) -> BTreeSet<&'static str> {
    let mut command = program();
    command.arg("--store").arg(store).args(arguments);
    let (outcome, trace) = traced(&command);
    outcome.ok();
    assert!(trace.iter().any(|event| event.act == Act::Reply), "{arguments:?}: no reply was seen");
    let broken = broken(store, &trace);
    assert!(broken.is_empty(), "{arguments:?}:\n{}", broken.join("\n"));
    let is_forgotten = |event: &Event| match &event.act {
        Act::Remove(path) => is_below(store, path, "state/image_manager/pulled"),
        _ => false,
    };
    let forgotten = trace.iter().any(is_forgotten).then_some("forgotten");
    let places = renames(&trace, |to| place(store, to).is_some()).filter_map(|event| place(store, target(event)));
    places.chain(forgotten).collect()
}

#[test]
fn everything_is_durable_before_it_counts_and_before_it_is_told() {
    let (folder, registry) = (scratch(), FakeRegistry::start());
    let store = folder.path().canonicalize().unwrap().join("store");
    let shared = small_layer("shared", 3_000);
    let one = Sample::put(&registry, "one:v1", vec![shared.clone(), small_layer("one", 5_000)]);
    let two = Sample::put(&registry, "two:v1", vec![shared, small_layer("two", 5_000)]);
    let again = one.put_again(&registry, "again:v1");

    let pull = BTreeSet::from(["images", "intents", "layers", "ledger", "names", "records"]);
    assert_eq!(checked(&store, &["pull", &one.name]), pull);
    assert_eq!(checked(&store, &["pull", &two.name]), pull);
    assert!(checked(&store, &["pull", &again]).is_superset(&BTreeSet::from(["intents", "names", "records"])));
    assert!(checked(&store, &["pull", "--policy", "Always", &two.name]).contains("intents"));
    assert!(checked(&store, &["pin", &one.name]).contains("pins"));
    assert!(checked(&store, &["unpin", &one.name]).contains("pins"));
    assert!(checked(&store, &["untag", &again]).contains("names"));
    assert!(checked(&store, &["rm", &two.name]).contains("names"));
    assert!(checked(&store, &["gc", "--all-unused", "--now"]).is_superset(&BTreeSet::from(["forgotten", "names"])));
}

/// A pull as it has to be; the tests below doctor it.
const GOOD: &str = r#"7 openat(AT_FDCWD</>, "/s/state/image_manager/pulling/sha256-1.tmp", O_WRONLY|O_CREAT, 0600) = 5</s/state/image_manager/pulling/sha256-1.tmp>
7 write(5</s/state/image_manager/pulling/sha256-1.tmp>, "{"..., 99) = 99
7 fsync(5</s/state/image_manager/pulling/sha256-1.tmp>) = 0
7 rename("/s/state/image_manager/pulling/sha256-1.tmp", "/s/state/image_manager/pulling/sha256-1") = 0
7 fsync(5</s/state/image_manager/pulling>) = 0
7 connect(9<socket:[1]>, {sa_family=AF_INET, sin_port=htons(1)}, 16) = -1 EINPROGRESS (Operation now in progress)
8 mkdirat(5</s/tmp/7-1>, "fs", 0777) = 0
8 openat(5</s/tmp/7-1/fs>, "file", O_WRONLY|O_CREAT|O_EXCL, 0600) = 6</s/tmp/7-1/fs/file>
8 write(6</s/tmp/7-1/fs/file>, "x"..., 9) = 9
7 syncfs(6</s>) = 0
7 rename("/s/tmp/7-1", "/s/layers/aa") = 0
7 fsync(6</s/layers>) = 0
7 openat(AT_FDCWD</>, "/s/names.new", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 6</s/names.new>
7 write(6</s/names.new>, "{"..., 9) = 9
7 fdatasync(6</s/names.new>) = 0
7 rename("/s/names.new", "/s/names.json") = 0
7 fsync(6</s>) = 0
7 write(1<pipe:[2]>, "sha256:"..., 72) = 72
"#;

#[test]
fn a_doctored_trace_is_found_out() {
    let store = Path::new("/s");
    assert_eq!(broken(store, &events(GOOD)), Vec::<String>::new());
    let sync_layers = "7 fsync(6</s/layers>) = 0\n";
    let sync_all = "7 syncfs(6</s>) = 0\n";
    let doctored = [
        ("no sync of the content", GOOD.replace(sync_all, "")),
        ("a sync that failed", GOOD.replace(sync_all, "7 syncfs(6</s>) = -1 EIO (Input/output error)\n")),
        (
            "a write after the sync",
            GOOD.replace(sync_all, &format!("{sync_all}8 write(6</s/tmp/7-1/fs/file>, \"y\", 1) = 1\n")),
        ),
        (
            "a write that ends after the sync",
            GOOD.replace("\"x\"..., 9) = 9\n", "\"x\"..., 9 <unfinished ...>\n")
                .replace(sync_all, &format!("{sync_all}8 <... write resumed>) = 9\n")),
        ),
        (
            "a sync that ends after the rename",
            GOOD.replace(sync_all, "8 syncfs(6</s> <unfinished ...>\n")
                .replace(sync_layers, &format!("8 <... syncfs resumed>) = 0\n{sync_layers}")),
        ),
        ("no sync of the folder", GOOD.replace(sync_layers, "")),
        ("names before the folder", GOOD.replace(sync_layers, "") + sync_layers),
        ("names that are not synced", GOOD.replace("7 fdatasync(6</s/names.new>) = 0\n", "")),
        ("another file synced", GOOD.replace("fdatasync(6</s/names.new>", "fdatasync(6</s/names.old>")),
        ("a reply before the root is synced", GOOD.replace("7 fsync(6</s>) = 0\n", "") + "7 fsync(6</s>) = 0\n"),
        ("a network before the intent", GOOD.replace("7 fsync(5</s/state/image_manager/pulling>) = 0\n", "")),
        (
            "a last use that a power cut takes",
            GOOD.to_owned()
                + "7 write(5</s/state/inventory/.ledger.new>, \"0\"..., 99) = 99\n"
                + "7 rename(\"/s/state/inventory/.ledger.new\", \"/s/state/inventory/ledger\") = 0\n",
        ),
        (
            "content gone before its names",
            GOOD.replace(
                "7 fsync(6</s>) = 0\n",
                "7 rename(\"/s/layers/bb\", \"/s/trash/1\") = 0\n7 fsync(6</s>) = 0\n",
            ),
        ),
        (
            "a removed record that a power cut restores",
            GOOD.to_owned() + "7 unlink(\"/s/state/image_manager/pulled/sha256-2\") = 0\n",
        ),
        (
            "a reply before the removal of a record is durable",
            GOOD.replace("7 write(1<pipe", "7 unlink(\"/s/state/image_manager/pulled/sha256-2\") = 0\n7 write(1<pipe")
                + "7 fsync(5</s/state/image_manager/pulled>) = 0\n",
        ),
        (
            "an intent gone before its record",
            GOOD.to_owned()
                + "7 unlink(\"/s/state/image_manager/pulling/sha256-1\") = 0\n7 rename(\"/s/state/image_manager/pulled/sha256-2.tmp\", \"/s/state/image_manager/pulled/sha256-2\") = 0\n7 fsync(5</s/state/image_manager/pulled>) = 0\n",
        ),
    ];
    for (what, trace) in doctored {
        assert_ne!(trace, GOOD, "{what}: nothing is doctored");
        assert!(!broken(store, &events(&trace)).is_empty(), "{what}: not found out\n{trace}");
    }
}
