//! `imagelet install`: another root file system is prepared with the real systemctl; a host, in a mount namespace with a
//! systemctl that starts the unit's program, gets a daemon over a real containerd, and has nothing of it afterwards.

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    http_api::get,
    ports::Port,
    program::{Outcome, program, run, write_script},
    testbed::{Containerd, Part, Registry, require_root, scratch, wait_until},
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
        let mode = if file == FILES[0] { 0o600 } else { 0o644 };
        assert_eq!(fs::metadata(root.join(file)).unwrap().permissions().mode() & 0o777, mode, "{file}");
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
    let mode = || fs::metadata(&config).unwrap().permissions().mode() & 0o777;
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).unwrap();
    let tightened = install(&root, &["--role=between", runtime]).json();
    assert_eq!((mode(), with_result(&tightened, "unchanged").len()), (0o600, FILES.len()), "{tightened}");
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
echo "${SYSTEMCTL_FORCE_BUS-private}" >>"$CALLS.bus"
shift 2 # --no-pager --no-ask-password
case "$*" in
"restart imagelet.service")
  if [ -s "$CALLS.pid" ]; then
    kill "$(cat "$CALLS.pid")"
    for _ in $(seq 100); do kill -0 "$(cat "$CALLS.pid")" 2>/dev/null || break; sleep 0.1; done
  fi
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

/// A host of its own, as the one above, that lives on; `systemctl` is in its own PATH.
const LIVING_HOST: &str = r#"
set -e
mount --make-rprivate /
mkdir -p "$WORK"/etc "$WORK"/etc.work "$WORK"/lib "$WORK"/lib.work "$WORK"/local.work
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
mount -t tmpfs tmpfs /opt
mount -t overlay overlay -o lowerdir=/etc,upperdir="$WORK"/etc,workdir="$WORK"/etc.work /etc
mount -t overlay overlay -o lowerdir=/var/lib,upperdir="$WORK"/lib,workdir="$WORK"/lib.work /var/lib
mount -t overlay overlay -o lowerdir=/usr/local,upperdir="$WORK"/local,workdir="$WORK"/local.work /usr/local
touch "$WORK"/ready
exec sleep 600
"#;

/// A host whose mount namespace a pod enters.
struct LivingHost {
    process: Part,
    work: PathBuf,
}

impl LivingHost {
    fn start(folder: &Path) -> Self {
        let work = folder.join("work");
        fs::create_dir_all(work.join("local/sbin")).unwrap();
        let script = format!("CALLS={}\n{SYSTEMCTL}", folder.join("calls").display());
        write_script(&work.join("local/sbin/systemctl"), &script);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", LIVING_HOST]).env("WORK", &work);
        let process = Part::start(&mut command, "util-linux", folder.join("host.log"));
        wait_until("the host", || work.join("ready").exists());
        Self { process, work }
    }

    /// A path of the host.
    fn path(&self, path: &str) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.process.id())).join(path)
    }

    /// What the init container of a pod does.
    fn pod_install(&self, arguments: &[&str]) -> Outcome {
        let namespace = format!("--host-namespace=/proc/{}/ns/mnt", self.process.id());
        run(program().args(["pod", "install"]).arg(namespace).args(arguments))
    }

    /// What systemctl was asked since the last call.
    fn calls(&self) -> Vec<String> {
        let path = self.work.with_file_name("calls");
        let text = fs::read_to_string(&path).unwrap_or_default().replace("--no-pager --no-ask-password ", "");
        fs::write(&path, "").unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn a_pod_sets_its_host_up_keeps_what_runs_and_takes_the_host_back() {
    require_root("mount namespaces");
    let folder = scratch();
    let (registry, port) = (Registry::start(), Port::choose());
    let containerd = Containerd::start(folder.path(), &registry);
    let host = LivingHost::start(folder.path());
    let (base, token) = (folder.path().join("config.yaml"), folder.path().join("token"));
    let set = |high: &str| {
        let text = format!("http: {{address: '{}', tokenFile: /opt/imagelet/http-token}}\n{high}\n", port.address());
        let proxies = "[{hosts: [a.example], proxy: 'http://node@p', passwordFile: /opt/imagelet/proxy-password}]";
        fs::write(&base, format!("{text}registry: {{proxies: {proxies}}}\n")).unwrap();
    };
    set("imageGCHighThresholdPercent: 90");
    let password = folder.path().join("password");
    fs::write(&password, "open-sesame-47").unwrap();
    fs::write(&token, "a-token-of-more-than-32-characters-0123456789").unwrap();
    let runtime = format!("--runtime-endpoint={}", containerd.endpoint());
    let of_base = format!("--base-configuration={}", base.display());
    let of_token = format!("--http-token={}", token.display());
    let of_password = format!("--proxy-password={}", password.display());
    let arguments = ["--role=between", &runtime, &of_base, &of_token, &of_password];
    let read = |path: &str| fs::read_to_string(host.path(path)).unwrap_or_default();

    // A host that is set up otherwise, or not at all, is not changed.
    let (unit, systemd) = (host.path("etc/systemd/system/imagelet.service"), host.path("run/systemd/system"));
    fs::write(&unit, "[Service]\n").unwrap();
    host.pod_install(&arguments).refused(&["imagelet.service` exists", "by other means", "node.nodeSelector"]);
    fs::remove_file(&unit).unwrap();
    fs::remove_dir(&systemd).unwrap();
    host.pod_install(&arguments).refused(&["systemd does not run on this host"]);
    fs::create_dir(&systemd).unwrap();
    host.pod_install(&["--uninstall"]).ok();
    assert_eq!((host.path("opt/imagelet").exists(), host.calls()), (false, Vec::new()));

    host.pod_install(&arguments).ok();
    assert_eq!(host.calls()[1..3], ["enable imagelet.socket imagelet.service", "restart imagelet.service"]);
    let config = read(FILES[0]);
    assert!(config.contains("imageGCHighThresholdPercent: 90") && config.contains(&containerd.endpoint()), "{config}");
    assert!(read(FILES[2]).contains("\nExecStart=/opt/imagelet/imagelet serve "));
    assert_eq!(fs::read_link(host.path("usr/local/bin/imagelet")).unwrap(), Path::new("/opt/imagelet/imagelet"));
    for (file, mode) in [("imagelet", 0o755), ("http-token", 0o600), ("proxy-password", 0o600), ("config.yaml", 0o600)]
    {
        let metadata = fs::metadata(host.path("opt/imagelet").join(file)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{file}");
    }
    let daemon = || fs::read_to_string(folder.path().join("calls.pid")).unwrap();
    let first = daemon();
    wait_until("the daemon's HTTP server", || TcpStream::connect(port.address()).is_ok());
    assert_eq!(get(&port.address(), "/metrics").status, 401, "it asks for the token");

    // The pod is created again: nothing is restarted.
    host.pod_install(&arguments).ok();
    let calls = host.calls();
    assert!(!calls.iter().any(|call| call.contains("restart")), "{calls:?}");
    assert!(calls.contains(&"start imagelet.service".to_owned()), "{calls:?}");
    // An invalid configuration does not replace the former one.
    set("imageGCHighThresholdPercent: 900");
    host.pod_install(&arguments).refused(&["imageGCHighThresholdPercent"]);
    assert_eq!((read(FILES[0]), daemon()), (config, first.clone()));
    assert!(!host.path("etc/imagelet/config.yaml.unchecked").exists());
    host.calls();
    // After an attempt that failed, what runs may be older than the files.
    set("imageGCHighThresholdPercent: 90");
    host.pod_install(&arguments).ok();
    assert!(host.calls().contains(&"restart imagelet.service".to_owned()));
    assert_ne!(daemon(), first);

    host.pod_install(&["--uninstall"]).ok();
    // systemd's own socket does not work from the process namespace of a pod.
    let over = fs::read_to_string(folder.path().join("calls.bus")).unwrap();
    assert!(!over.is_empty() && over.lines().all(|line| line == "1"), "systemctl has to ask over the bus: {over}");
    let left = files_below(&host.work.join("etc"));
    assert!(left.is_empty(), "nothing is left in /etc: {left:?}");
    for path in ["etc/imagelet", "etc/systemd/system/kubelet.service.d", "opt/imagelet"] {
        assert!(!host.path(path).exists(), "{path}");
    }
    assert!(!host.path("usr/local/bin/imagelet").is_symlink());
    // A pod that ended amid its first write left a part of the program.
    fs::create_dir(host.path("opt/imagelet")).unwrap();
    fs::write(host.path("opt/imagelet/imagelet.new"), "a part").unwrap();
    host.pod_install(&["--uninstall"]).ok();
    assert!(!host.path("opt/imagelet").exists());
}
