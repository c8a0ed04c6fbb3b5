//! `imagelet install`: another root file system is prepared with the real systemctl; a host, in a mount namespace with a
//! systemctl that starts the unit's program, gets a daemon over a real containerd, and has nothing of it afterwards.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    program::{Outcome, program, run, write_script},
    testbed::{Containerd, Registry, require_root, scratch},
};

const KUBELET_CONFIG: &str = "etc/kubernetes/kubelet.conf.d/90-imagelet.conf";
const WANTED_BY: [&str; 2] = [
    "etc/systemd/system/sockets.target.wants/imagelet.socket",
    "etc/systemd/system/multi-user.target.wants/imagelet.service",
];
const FILES: [&str; 5] = [
    "etc/imagelet/config.yaml",
    "etc/systemd/system/imagelet.socket",
    "etc/systemd/system/imagelet.service",
    "etc/systemd/system/kubelet.service.d/10-imagelet.conf",
    KUBELET_CONFIG,
];

fn install(root: &Path, arguments: &[&str]) -> Outcome {
    run(program().arg("install").args(arguments).arg("--root").arg(root).args(["-o", "json"]))
}

/// The steps with this result, by their targets.
fn with_result(report: &Value, result: &str) -> Vec<String> {
    let steps = report["steps"].as_array().unwrap().iter().filter(|step| step["result"] == result);
    steps.map(|step| step["target"].as_str().unwrap().to_owned()).collect()
}

fn files_below(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

#[test]
fn another_root_file_system_is_prepared_and_taken_back_but_for_what_was_changed() {
    let folder = scratch();
    let root = folder.path().join("root");
    let runtime = "--runtime-endpoint=unix:///run/containerd/containerd.sock";
    fs::create_dir_all(root.join("usr/local/bin")).unwrap();
    install(&root, &["--role=between", runtime]).refused(&["has no program imagelet", "usr/local/bin/imagelet"]);
    fs::write(root.join("usr/local/bin/imagelet"), "").unwrap();
    install(&root, &["--role=between"]).refused(&["no socket of a runtime", "--runtime-endpoint"]);
    let before = files_below(&root);

    let planned = install(&root, &["--role=between", runtime, "--dry-run"]).json();
    assert_eq!(files_below(&root), before, "a dry run writes nothing");
    let done = install(&root, &["--role=between", runtime]).json();
    assert_eq!(with_result(&planned, "planned"), with_result(&done, "done"));
    for file in FILES {
        assert!(with_result(&done, "done").contains(&format!("/{file}")), "{file} is not in {done}");
        let text = fs::read_to_string(root.join(file)).unwrap();
        assert!(text.starts_with("# Written by `imagelet install`"), "{text}");
        assert_eq!(fs::metadata(root.join(file)).unwrap().permissions().mode() & 0o777, 0o644, "{file}");
    }
    for link in WANTED_BY {
        assert!(root.join(link).is_symlink(), "systemd does not start {link}");
    }
    run(program().args(["config", "check"]).arg(root.join(FILES[0]))).ok();
    let kubelet = fs::read_to_string(root.join(KUBELET_CONFIG)).unwrap();
    assert!(kubelet.contains("\nimageServiceEndpoint: unix:///run/imagelet/imagelet.sock\n"), "{kubelet}");
    let again = install(&root, &["--role=between", runtime]).json();
    assert!(with_result(&again, "unchanged").len() == FILES.len(), "{again}");

    let config = root.join(FILES[0]);
    let changed = fs::read_to_string(&config).unwrap() + "imageGCHighThresholdPercent: 90\n";
    fs::write(&config, &changed).unwrap();
    install(&root, &["--uninstall"]).ok();
    let mut left = before;
    left.push(config.clone());
    left.sort();
    assert_eq!(files_below(&root), left, "what was changed stays, and nothing else");
    assert_eq!(fs::read_to_string(&config).unwrap(), changed);
    // It names the runtime, so the next installation takes it as it is.
    let third = install(&root, &["--role=node"]).json();
    assert!(with_result(&third, "unchanged").contains(&"/etc/imagelet/config.yaml".into()), "{third}");
    assert!(!root.join(KUBELET_CONFIG).exists());
}

#[test]
fn files_of_others_and_links_out_of_the_root_are_refused_before_anything_is_written() {
    let folder = scratch();
    let runtime = "--runtime-endpoint=unix:///run/containerd/containerd.sock";
    let prepared = |name: &str| {
        let root = folder.path().join(name);
        fs::create_dir_all(root.join("usr/bin")).unwrap();
        fs::write(root.join("usr/bin/imagelet"), "").unwrap();
        root
    };
    for (name, file, text, words) in [
        ("unit", FILES[2], "[Service]\n", "was not written by `imagelet install`"),
        (
            "no-runtime",
            FILES[0],
            "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\n",
            "names no runtime",
        ),
        ("invalid", FILES[0], "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nno: 1\n", "no"),
        (
            "other",
            FILES[0],
            "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\nimageService: {cri: {endpoint: unix:///run/crio/crio.sock}}\n",
            "names the runtime `unix:///run/crio/crio.sock`",
        ),
    ] {
        let root = prepared(name);
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::write(root.join(file), text).unwrap();
        let before = files_below(&root);
        install(&root, &["--role=between", runtime]).refused(&[words]);
        assert_eq!(files_below(&root), before, "{name}");
        install(&root, &["--uninstall"]).ok();
        assert_eq!(files_below(&root), before, "{name}: an uninstallation takes nothing of others");
    }
    let root = prepared("link");
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("etc")).unwrap();
    install(&root, &["--role=node", runtime]).refused(&["is a symbolic link"]);
    assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
}

/// What a service manager does for the two units: it starts the program of the unit, and ends it.
const SYSTEMCTL: &str = r#"
echo "$*" >>"$CALLS"
shift 2 # --no-pager --no-ask-password
case "$*" in
"restart imagelet.service")
  command=$(sed -n 's/^ExecStart=//p' /etc/systemd/system/imagelet.service)
  setsid $command >>"$CALLS.log" 2>&1 </dev/null &
  echo $! >"$CALLS.pid" ;;
"disable --now"*) kill "$(cat "$CALLS.pid")" ;;
esac
"#;

/// A host of its own: `/run`, `/etc` and `/var/lib` are copies, and systemd is said to run.
const HOST: &str = r#"
set -e
mount --make-rprivate /
mkdir -p "$WORK"/etc "$WORK"/etc.work "$WORK"/lib "$WORK"/lib.work
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
mount -t overlay overlay -o lowerdir=/etc,upperdir="$WORK"/etc,workdir="$WORK"/etc.work /etc
mount -t overlay overlay -o lowerdir=/var/lib,upperdir="$WORK"/lib,workdir="$WORK"/lib.work /var/lib
"$PROGRAM" install --role between --runtime-endpoint "$RUNTIME" -o json >"$WORK"/installed
"$PROGRAM" --endpoint unix:///run/imagelet/imagelet.sock status -o json >"$WORK"/status
"$PROGRAM" install --uninstall -o json >"$WORK"/uninstalled
"#;

#[test]
fn a_host_gets_a_daemon_over_containerd_and_has_nothing_of_it_afterwards() {
    require_root("mount namespaces");
    let folder = scratch();
    let (registry, work) = (Registry::start(), folder.path().join("work"));
    let containerd = Containerd::start(folder.path(), &registry);
    let (calls, tools) = (folder.path().join("calls"), folder.path().join("tools"));
    fs::create_dir_all(&work).unwrap();
    fs::create_dir(&tools).unwrap();
    write_script(&tools.join("systemctl"), SYSTEMCTL);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", HOST])
        .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", tools.display()))
        .envs([("WORK", &work), ("CALLS", &calls)])
        .env("PROGRAM", program().get_program())
        .env("RUNTIME", containerd.endpoint());
    let outcome = run(&mut command);
    let log = fs::read_to_string(folder.path().join("calls.log")).unwrap_or_default();
    assert_eq!(outcome.code, 0, "{outcome:?}\n{log}");

    let read = |name: &str| -> Value { serde_json::from_slice(&fs::read(work.join(name)).unwrap()).unwrap() };
    let status = read("status");
    assert!(status.to_string().contains(&containerd.endpoint()), "the daemon works over containerd: {status}");
    let asked = fs::read_to_string(&calls).unwrap().replace("--no-pager --no-ask-password ", "");
    // No kubelet runs, so none is restarted at the installation; on the way back a restart of none does no harm.
    let expected = [
        "daemon-reload",
        "enable imagelet.socket imagelet.service",
        "restart imagelet.service",
        "daemon-reload",
        "daemon-reload",
        "try-restart kubelet.service",
        "disable --now imagelet.service imagelet.socket",
        "daemon-reload",
    ];
    assert_eq!(asked.lines().collect::<Vec<_>>(), expected);
    assert!(!with_result(&read("installed"), "open").is_empty(), "that the kubelet reads no drop-ins is said");
    let left = files_below(&work.join("etc"));
    assert!(left.is_empty(), "nothing is left in /etc: {left:?}");
}
