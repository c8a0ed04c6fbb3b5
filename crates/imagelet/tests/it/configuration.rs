//! Bad configurations, B116 of the catalogue of bad inputs: each is refused at the start with its file and line, and at
//! a reload, where the old one stays in force until a good one comes.
//!
//! The table is in `cases`; a case is one file. Each is shown to `config check` or `config show`, to a daemon that
//! starts, and to one that runs.

mod cases;
mod flags;
mod reload;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
};

use crate::{
    program::{Outcome, program, run},
    testbed::scratch,
};
use cases::{Case, Content, Kind, Wrong};

/// A complaint longer than this is no complaint: what a file says comes back cut.
const COMPLAINT_MAX: usize = 2_000;

/// A case's file at its place, or the nothing that is there.
fn lay(folder: &Path, case: &Case) -> PathBuf {
    let path = folder.join("settings.yaml");
    put(&path, &case.content);
    path
}

/// Makes the path what a case wants it to be, whatever it was.
fn put(path: &Path, content: &Content) {
    if path.is_dir() {
        fs::remove_dir(path).unwrap();
    } else if path.symlink_metadata().is_ok() {
        fs::remove_file(path).unwrap();
    }
    match content {
        Content::Text(text) => fs::write(path, text).unwrap(),
        Content::Bytes(bytes) => fs::write(path, bytes).unwrap(),
        Content::Nothing => {}
        Content::Directory => fs::create_dir(path).unwrap(),
        Content::Dangling => std::os::unix::fs::symlink("/nonexistent/settings.yaml", path).unwrap(),
        Content::Loop => std::os::unix::fs::symlink(path, path).unwrap(),
        Content::Device => std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        Content::Pipe => {
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, path, kind, 0o600.into(), 0).unwrap();
        }
    }
}

/// What stands in front of a complaint about this case.
fn place(path: &Path, case: &Case) -> String {
    match case.line {
        Some(line) => format!("{}:{line}: ", path.display()),
        None => path.display().to_string(),
    }
}

/// The option that names a file of this kind.
fn option(kind: Kind) -> &'static str {
    match kind {
        Kind::Own => "--config",
        Kind::Kubelet => "--kubelet-config",
    }
}

/// What is wrong with a complaint, if anything.
fn judge(case: &Case, path: &Path, told: &str) -> Option<String> {
    let mut missing: Vec<&str> = case.words.iter().copied().filter(|word| !told.contains(word)).collect();
    let place = place(path, case);
    if !told.contains(&place) {
        missing.push(&place);
    }
    if !missing.is_empty() {
        return Some(format!("{missing:?} is not told in: {told}"));
    }
    if told.len() > COMPLAINT_MAX {
        return Some(format!("{} bytes are told", told.len()));
    }
    if told.contains("panicked") || told.chars().any(|found| found.is_control() && found != '\n') {
        return Some(format!("this is no message for people: {told:?}"));
    }
    None
}

fn refused(case: &Case, path: &Path, outcome: &Outcome) -> Option<String> {
    if outcome.code != 1 || !outcome.stdout.is_empty() {
        return Some(format!("exit code {}, stdout {:?}, stderr {:?}", outcome.code, outcome.stdout, outcome.stderr));
    }
    judge(case, path, &outcome.stderr)
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} cases went wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_bad_configuration_is_refused_when_it_is_looked_at() {
    let mut wrong = Vec::new();
    for case in cases::all() {
        let folder = scratch();
        let path = lay(folder.path(), &case);
        let outcome = match case.kind {
            Kind::Own => run(program().args(["config", "check"]).arg(&path)),
            Kind::Kubelet => run(program().args(["config", "check", "--kubelet-config"]).arg(&path)),
        };
        wrong.extend(refused(&case, &path, &outcome).map(|why| format!("{}: {why}", case.what)));
    }
    assert_none(&wrong);
}

#[test]
fn a_daemon_does_not_start_with_a_bad_configuration_and_touches_nothing() {
    let mut wrong = Vec::new();
    for case in cases::all() {
        let folder = scratch();
        let path = lay(folder.path(), &case);
        let (store, socket) = (folder.path().join("store"), folder.path().join("run/imagelet.sock"));
        let mut serve = program();
        serve.args(["serve", option(case.kind)]).arg(&path);
        if !case.is_hidden_by_flags() {
            serve.arg("--store").arg(&store).arg("--socket").arg(&socket);
        }
        let outcome = run(&mut serve);
        wrong.extend(refused(&case, &path, &outcome).map(|why| format!("{}: {why}", case.what)));
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        if left.iter().any(|left| *left != path) {
            wrong.push(format!("{}: left behind {left:?}", case.what));
        }
    }
    assert_none(&wrong);
}

#[test]
fn a_path_that_is_no_text_and_a_complaint_with_escapes_print_harmlessly() {
    let folder = scratch();
    let path = folder.path().join(std::ffi::OsStr::from_bytes(b"con\xffig.yaml"));
    fs::write(&path, "\"\\e[2Jclear\": 1\n").unwrap();
    let outcome = run(program().args(["config", "check"]).arg(&path));
    let told = outcome.refused(&["clear", ":1: "]);
    assert!(!told.contains('\u{1b}'), "{told:?}");
}

#[test]
fn a_check_names_every_mistake_with_its_line_and_the_key_that_was_meant() {
    let folder = scratch();
    let path = folder.path().join("config.yaml");
    let text = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageGCHighTresholdPercent: 70\n\
                imageGCLowThresholdPercent: 120\nstore:\n  unpackMemry: 1Gi\n  keepBlobs: perhaps\ndirectory: /s\n\
                registryPullQPS: -1\n";
    fs::write(&path, text).unwrap();
    let outcome = run(program().args(["config", "check"]).arg(&path));
    let stderr = outcome.refused(&[
        ":3: unknown key `imageGCHighTresholdPercent`; `imageGCHighThresholdPercent` is near",
        ":4: invalid configuration: imageGCLowThresholdPercent",
        ":6: unknown key `unpackMemry`; `store.unpackMemory` is near",
        ":7: store.keepBlobs: ",
        ":8: unknown key `directory`; `importFolder.directory` or `store.directory` is near",
        ":9: invalid configuration: registryPullQPS",
    ]);
    assert!(stderr.lines().count() < 12, "{stderr}");
}

#[test]
fn a_kubelets_file_is_checked_alone_and_under_ours() {
    let folder = scratch();
    let (own, kubelet) = (folder.path().join("own.yaml"), folder.path().join("kubelet.yaml"));
    fs::write(&own, "imageGCHighThresholdPercent: 82\n").unwrap();
    let header = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";
    fs::write(&kubelet, header).unwrap();
    let check = || {
        let mut check = program();
        check.args(["config", "check", "--kubelet-config"]).arg(&kubelet);
        check
    };
    assert_eq!(run(&mut check()).ok(), format!("{} is valid\n", kubelet.display()));
    let both = format!("{} and {} are valid\n", kubelet.display(), own.display());
    assert_eq!(run(check().arg(&own)).ok(), both);
    // Each is good alone: what is wrong is the one over the other.
    fs::write(&kubelet, format!("{header}imageGCHighThresholdPercent: 90\nimageGCLowThresholdPercent: 84\n")).unwrap();
    assert_eq!(run(&mut check()).ok(), format!("{} is valid\n", kubelet.display()));
    run(check().arg(&own)).refused(&["imageGCLowThresholdPercent"]);
    assert_eq!(run(program().args(["config", "check"])).code, 2, "nothing is no file");
}

#[test]
fn a_check_refuses_the_token_file_and_the_providers_that_a_start_refuses_in_the_same_words() {
    let folder = scratch();
    let at = |name: &str| folder.path().join(name);
    let (path, token, store, socket) = (at("config.yaml"), at("token"), at("store"), at("imagelet.sock"));
    let header = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\n";
    let check = || run(program().args(["config", "check"]).arg(&path));
    let serve = || {
        let mut serve = program();
        serve.args(["serve", "--config"]).arg(&path).arg("--store").arg(&store).arg("--socket").arg(&socket);
        run(&mut serve)
    };
    let same = |what: &str, words: &str| {
        let (checked, started) = (check().refused(&[words]), serve().refused(&[words]));
        assert!(started.ends_with(&checked), "{what}: the check says\n{checked}and the start\n{started}");
    };
    let with_token = format!("{header}http: {{address: '127.0.0.1:0', tokenFile: '{}'}}\n", token.display());
    fs::write(&path, &with_token).unwrap();
    let good = "0123456789abcdef0123456789abcdef\n";
    for (what, content, mode, words) in [
        ("absent", None, 0, "could not read http.tokenFile"),
        ("empty", Some(""), 0o600, "must hold one line of 32 to 512 characters"),
        ("short", Some("secret\n"), 0o600, "must hold one line of 32 to 512 characters"),
        ("readable", Some(good), 0o644, "every user may read http.tokenFile"),
        ("writable", Some(good), 0o622, "could not read http.tokenFile"),
    ] {
        if let Some(content) = content {
            fs::write(&token, content).unwrap();
            fs::set_permissions(&token, fs::Permissions::from_mode(mode)).unwrap();
        }
        same(what, words);
        assert!(!store.exists() && !socket.exists(), "{what}: a start that is refused opens nothing");
    }
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(check().ok(), format!("{} is valid\n", path.display()));
    let shown = run(program().args(["config", "show", "-o", "json", "--config"]).arg(&path)).ok();
    assert!(!shown.contains(good.trim()), "the token is printed");

    let providers = at("providers.yaml");
    let keys = format!(
        "imageCredentialProviderConfigPath: '{}'\nimageCredentialProviderBinDir: '{}'\n",
        providers.display(),
        folder.path().display()
    );
    fs::write(&path, format!("{header}{keys}")).unwrap();
    same("no providers", "could not register the credential providers");
}

#[test]
fn what_is_accepted_beside_the_bad_is_what_was_written() {
    let folder = scratch();
    let path = folder.path().join("good.yaml");
    for (text, key, value) in cases::accepted() {
        fs::write(&path, &text).unwrap();
        let shown = run(program().args(["config", "show", "-o", "json", "--config"]).arg(&path)).json();
        let settings = shown["settings"].as_array().unwrap();
        let found = settings.iter().find(|one| one["key"] == key).unwrap_or_else(|| panic!("no {key} in {shown}"));
        assert_eq!(found["value"], value, "{text}");
    }
}

#[test]
fn every_kind_of_mistake_has_several_cases() {
    let mut counts: BTreeMap<Wrong, usize> = BTreeMap::new();
    let all = cases::all();
    for case in &all {
        *counts.entry(case.wrong).or_default() += 1;
    }
    for wrong in Wrong::ALL {
        assert!(counts.get(&wrong).copied().unwrap_or_default() >= 2, "{wrong:?} has too few cases: {counts:?}");
    }
    for kind in [Kind::Own, Kind::Kubelet] {
        assert!(all.iter().filter(|case| case.kind == kind).count() > 10, "{kind:?}");
    }
    let mut names: Vec<_> = all.iter().map(|case| case.what.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len(), "two cases have one name");
}
