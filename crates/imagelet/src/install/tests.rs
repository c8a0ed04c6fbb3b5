//! Tables of plans: a request and a host, and the steps or the refusal.

use std::path::Path;

use super::{
    host::{HostConfiguration, HostFacts, HostParts, Kubelet, Systemd},
    owned_file::FileState,
    plan::mode_of,
    *,
};

const CONTAINERD: &str = "unix:///run/containerd/containerd.sock";
const KUBELET_CONFIG: &str = "/etc/kubernetes/kubelet.conf.d/90-imagelet.conf";

fn request(role: Option<Role>) -> InstallArgs {
    InstallArgs { role, ..InstallArgs::default() }
}

/// A host with containerd and a kubelet that reads drop-ins.
fn host() -> HostFacts {
    HostFacts {
        systemd: Systemd::Running,
        program: "/usr/local/bin/imagelet".into(),
        runtimes: vec![CONTAINERD.into()],
        kubelet: Kubelet { config_dir: Some(KUBELET_CONFIG_DIR.into()), ..Kubelet::default() },
        ..HostFacts::default()
    }
}

/// A configuration that names a runtime.
fn configured(endpoint: Option<&str>) -> HostConfiguration {
    HostConfiguration { endpoint: endpoint.map(str::to_owned), ..HostConfiguration::default() }
}

/// The host after the writes of a plan.
fn after(host: &HostFacts, steps: &[Step]) -> HostFacts {
    let mut host = host.clone();
    for step in steps {
        match step {
            Step::Write { path, content } => {
                host.files.insert(path.clone(), FileState::Unchanged(content.clone()));
            }
            Step::Remove(path) => {
                host.files.remove(path);
            }
            _ => {}
        }
    }
    host
}

fn with(mut host: HostFacts, path: &str, state: FileState) -> HostFacts {
    host.files.insert(path.into(), state);
    host
}

/// The steps in short.
fn short(steps: &[Step]) -> Vec<String> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = |step: &Step| match step {
        Step::ProbeRuntime(endpoint) => format!("probe {endpoint}"),
        Step::Write { path, .. } => format!("write {}", name(path)),
        Step::Keep { path, .. } => format!("keep {}", name(path)),
        Step::Protect(path) => format!("protect {path}"),
        Step::Remove(path) => format!("remove {}", name(path)),
        Step::RemoveFolder(path) => format!("remove {path}/"),
        Step::CheckConfiguration(_) => "check".into(),
        Step::Systemctl(arguments) => arguments.join(" "),
        Step::AwaitDaemon => "await".into(),
        Step::Advise(text) => format!("advice {}", text.split(' ').next().unwrap_or_default()),
    };
    steps.iter().map(text).collect()
}

#[test]
fn the_kubelet_is_pointed_at_a_daemon_that_answers_and_away_from_it_before_it_stops() {
    let installed = plan(&request(Some(Role::Between)), &host()).unwrap();
    assert_eq!(
        short(&installed),
        [
            "probe unix:///run/containerd/containerd.sock",
            "check",
            "write config.yaml",
            "write imagelet.socket",
            "write imagelet.service",
            "daemon-reload",
            "enable imagelet.socket imagelet.service",
            "restart imagelet.service",
            "await",
            "write 10-imagelet.conf",
            "write 90-imagelet.conf",
            "daemon-reload",
            "try-restart kubelet.service",
            "advice set",
        ]
    );
    let there = HostFacts { there: HostParts { socket: true, ..HostParts::default() }, ..after(&host(), &installed) };
    let removed = plan(&request(None), &there).unwrap();
    assert_eq!(
        short(&removed),
        [
            "remove 10-imagelet.conf",
            "remove 90-imagelet.conf",
            "remove /etc/systemd/system/kubelet.service.d/",
            "daemon-reload",
            "try-restart kubelet.service",
            "disable --now imagelet.service imagelet.socket",
            "remove imagelet.service",
            "remove imagelet.socket",
            "daemon-reload",
            "remove imagelet.sock",
            "remove /run/imagelet/",
            "remove config.yaml",
            "remove /etc/imagelet/",
        ]
    );
    assert_eq!(after(&there, &removed).files, host().files, "nothing is left");
    assert_eq!(plan(&request(None), &host()).unwrap(), [], "there is nothing to take back");
}

#[test]
fn a_second_installation_writes_nothing_and_another_role_takes_the_kubelets_side_back() {
    let there = after(&host(), &plan(&request(Some(Role::Between)), &host()).unwrap());
    let again = short(&plan(&request(Some(Role::Between)), &there).unwrap());
    assert!(!again.iter().any(|step| step.starts_with("write")), "{again:?}");
    let node = short(&plan(&request(Some(Role::Node)), &there).unwrap());
    assert_eq!(
        node[node.len() - 6..],
        [
            "remove 10-imagelet.conf",
            "remove 90-imagelet.conf",
            "remove /etc/systemd/system/kubelet.service.d/",
            "daemon-reload",
            "try-restart kubelet.service",
            "advice run"
        ]
    );
    let moved = HostFacts { program: "/opt/imagelet".into(), ..there };
    let steps = plan(&request(Some(Role::Node)), &moved).unwrap();
    let unit = steps.iter().find_map(|step| match step {
        Step::Write { path, content } if path == Path::new(SERVICE_UNIT) => Some(content),
        _ => None,
    });
    assert!(unit.unwrap().contains("\nExecStart=/opt/imagelet serve --config /etc/imagelet/config.yaml\n"));
}

#[test]
fn a_host_that_its_administrator_has_to_change_first_is_refused() {
    let node = request(Some(Role::Node));
    let named = |endpoint: &str| InstallArgs { runtime_endpoint: Some(endpoint.into()), ..node.clone() };
    let foreign = |endpoint: Option<&str>| HostFacts {
        configuration: configured(endpoint),
        ..with(host(), CONFIGURATION, FileState::Foreign)
    };
    let of_pods = InstallArgs { node_name: Some("node-1".into()), kubeconfig: Some("/k".into()), ..node.clone() };
    let other = "unix:///run/crio/crio.sock";
    let both = HostFacts { runtimes: vec![CONTAINERD.into(), other.into()], ..host() };
    let without = HostFacts { runtimes: Vec::new(), ..host() };
    for (request, host, expected) in [
        (&node, HostFacts { systemd: Systemd::Absent, ..host() }, Some("systemd does not run here")),
        (&node, without.clone(), Some("no socket of a runtime")),
        (&named(other), without, None),
        (&node, both.clone(), Some("containerd.sock and unix:///run/crio/crio.sock are there")),
        (&named(other), both, None),
        (&node, foreign(None), Some("names no runtime")),
        (&node, foreign(Some(CONTAINERD)), None),
        (&named(CONTAINERD), foreign(Some(CONTAINERD)), None),
        (&named(other), foreign(Some(CONTAINERD)), Some("containerd.sock`, not `unix:///run/crio/crio.sock`")),
        (&of_pods, foreign(Some(CONTAINERD)), Some("would have no effect")),
        (&of_pods, host(), None),
        (&node, with(host(), SERVICE_UNIT, FileState::Foreign), Some("imagelet.service` exists and was not written")),
        (&node, with(host(), SERVICE_UNIT, FileState::Changed), None),
        (
            &request(Some(Role::Between)),
            with(host(), KUBELET_CONFIG, FileState::Foreign),
            Some("90-imagelet.conf` exists and was not written"),
        ),
    ] {
        let refusal = plan(request, &host).err().map(|refusal| refusal.message);
        let is_expected =
            expected.map_or(refusal.is_none(), |words| refusal.as_ref().is_some_and(|it| it.contains(words)));
        assert!(is_expected, "{request:?} {host:?}: {refusal:?}");
    }
}

#[test]
fn what_an_administrator_or_a_package_has_stays() {
    let there = after(&host(), &plan(&request(Some(Role::Between)), &host()).unwrap());
    for (path, state) in
        [(CONFIGURATION, FileState::Changed), (SERVICE_UNIT, FileState::Changed), (KUBELET_CONFIG, FileState::Foreign)]
    {
        let steps = plan(&request(None), &with(there.clone(), path, state)).unwrap();
        let kept: Vec<_> = steps.iter().filter(|step| matches!(step, Step::Keep { .. })).collect();
        assert_eq!(kept.len(), 1);
        assert!(matches!(kept[0], Step::Keep { path: kept, .. } if kept == Path::new(path)), "{kept:?}");
        assert!(!steps.contains(&Step::Remove(path.into())));
    }
    let packaged = HostFacts { there: HostParts { package: true, state: true, socket: false }, ..host() };
    let steps = short(&plan(&request(Some(Role::Node)), &packaged).unwrap());
    assert!(
        !steps.contains(&"write imagelet.service".into()) && steps.contains(&"keep imagelet.service".into()),
        "{steps:?}"
    );
    assert_eq!(short(&plan(&request(None), &packaged).unwrap()), ["advice the", "advice /var/lib/imagelet"]);
}

#[test]
fn a_configuration_is_roots_alone_and_one_that_every_user_may_read_is_tightened_where_it_is_ours() {
    assert_eq!(
        [CONFIGURATION, SERVICE_UNIT, KUBELET_CONFIG].map(|path| mode_of(Path::new(path))),
        [0o600, 0o644, 0o644]
    );
    let node = request(Some(Role::Node));
    let there =
        HostFacts { configuration: configured(Some(CONTAINERD)), ..after(&host(), &plan(&node, &host()).unwrap()) };
    for (state, configuration_mode, is_tightened) in [
        (None, 0o644, true),
        (None, 0o640, false),
        (None, 0o600, false),
        (Some(FileState::Changed), 0o644, true),
        (Some(FileState::Foreign), 0o644, false),
        // It is written with its mode.
        (Some(FileState::Unchanged("other: 1\n".into())), 0o644, false),
    ] {
        let mut host = there.clone();
        host.configuration.mode = configuration_mode;
        let host = state.clone().map_or(host.clone(), |state| with(host, CONFIGURATION, state));
        let steps = plan(&node, &host).unwrap();
        assert_eq!(steps.contains(&Step::Protect(CONFIGURATION)), is_tightened, "{state:?} {configuration_mode:o}");
    }
}

#[test]
fn a_kubelet_that_reads_no_drop_ins_is_not_restarted_and_its_flags_are_named() {
    let between = request(Some(Role::Between));
    let advice = |host: &HostFacts, request: &InstallArgs| -> (bool, Vec<String>) {
        let steps = plan(request, host).unwrap();
        let advice = steps.iter().filter_map(|step| match step {
            Step::Advise(text) => Some(text.clone()),
            _ => None,
        });
        (steps.contains(&Step::Systemctl(&["try-restart", "kubelet.service"])), advice.collect())
    };
    let (is_restarted, texts) = advice(&HostFacts { kubelet: Kubelet::default(), ..host() }, &between);
    assert!(!is_restarted && texts[0].contains("--config-dir=/etc/kubernetes/kubelet.conf.d"), "{texts:?}");
    let elsewhere = InstallArgs { kubelet_config_dir: Some("/opt/k".into()), ..between.clone() };
    let (is_restarted, texts) = advice(&host(), &elsewhere);
    assert!(!is_restarted && texts[0].contains("--config-dir=/opt/k"), "{texts:?}");
    for (flag, is_named) in
        [("unix:///run/containerd/containerd.sock", true), ("unix:///run/imagelet/imagelet.sock", false)]
    {
        let kubelet = Kubelet { image_endpoint_flag: Some(flag.into()), ..host().kubelet };
        let (is_restarted, texts) = advice(&HostFacts { kubelet, ..host() }, &between);
        assert_eq!((is_restarted, texts.iter().any(|text| text.contains("wins over"))), (true, is_named), "{texts:?}");
    }
}

#[test]
fn another_root_is_prepared_and_nothing_is_started() {
    let offline = HostFacts { systemd: Systemd::Offline, kubelet: Kubelet::default(), ..host() };
    let steps = short(&plan(&request(Some(Role::Between)), &offline).unwrap());
    assert_eq!(
        steps,
        [
            "check",
            "write config.yaml",
            "write imagelet.socket",
            "write imagelet.service",
            "enable imagelet.socket imagelet.service",
            "write 10-imagelet.conf",
            "write 90-imagelet.conf",
            "advice start",
            "advice set",
        ]
    );
}

#[test]
fn what_runs_is_restarted_only_where_a_file_changes_if_it_was_started_with_the_others() {
    let kept = InstallArgs { keep_running: true, ..request(Some(Role::Between)) };
    let restarts = |request: &InstallArgs, host: &HostFacts| -> Vec<String> {
        let steps = short(&plan(request, host).unwrap());
        steps.into_iter().filter(|step| step.contains("start ")).collect()
    };
    let there = after(&host(), &plan(&kept, &host()).unwrap());
    assert_eq!(restarts(&kept, &host()), ["restart imagelet.service", "try-restart kubelet.service"]);
    assert_eq!(restarts(&kept, &there), ["start imagelet.service"]);
    let other = InstallArgs { node_name: Some("node-1".into()), kubeconfig: Some("/k".into()), ..kept.clone() };
    assert_eq!(restarts(&other, &there), ["restart imagelet.service"]);
    let mut without = there.clone();
    without.files.remove(Path::new(KUBELET_UNIT_DROP_IN));
    assert_eq!(restarts(&kept, &without), ["start imagelet.service", "try-restart kubelet.service"]);
    let always = request(Some(Role::Between));
    assert_eq!(restarts(&always, &there), ["restart imagelet.service", "try-restart kubelet.service"]);
}

#[test]
fn the_keys_of_a_base_stand_beside_those_of_the_runtime_and_the_node() {
    let base = "imageGCHighThresholdPercent: 70\nkubernetes: {lookAheadMax: 8, nodeName: other}\nkind: Other\n";
    let pods =
        InstallArgs { node_name: Some("node-1".into()), kubeconfig: Some("/k".into()), ..request(Some(Role::Node)) };
    let base = base_configuration(base).unwrap();
    let tree: serde_json::Value = serde_saphyr::from_str(&contents::configuration(CONTAINERD, &pods, &base)).unwrap();
    let expected = serde_json::json!({
        "apiVersion": "imagelet.dev/v1alpha1",
        "kind": "ImageletConfiguration",
        "imageGCHighThresholdPercent": 70,
        "imageService": {"cri": {"endpoint": CONTAINERD}},
        "kubernetes": {"lookAheadMax": 8, "nodeName": "node-1", "kubeconfig": "/k"},
    });
    assert_eq!(tree, expected);
    // It is checked before it is written: a daemon that runs could not start again with a wrong one.
    let mut host = host();
    host.configuration.base = base;
    let steps = plan(&pods, &host).unwrap();
    let written =
        steps.iter().position(|step| matches!(step, Step::Write { path, .. } if path == Path::new(CONFIGURATION)));
    let checked = steps.iter().position(|step| matches!(step, Step::CheckConfiguration(Some(_))));
    assert!(checked.is_some() && checked < written, "{steps:?}");
    let kept = with(host, CONFIGURATION, FileState::Changed);
    let kept = HostFacts {
        configuration: HostConfiguration { endpoint: Some(CONTAINERD.into()), ..kept.configuration },
        ..kept
    };
    assert!(plan(&pods, &kept).unwrap_err().message.contains("would have no effect"));
    let keys_alone = InstallArgs { node_name: None, kubeconfig: None, ..pods };
    assert!(plan(&keys_alone, &kept).unwrap_err().message.contains("would have no effect"));
    for (base, why) in [
        ("- 1\n", ""),
        ("a: [", ""),
        ("imageService: {}\n", "`imageService` is set by the installation"),
        ("kubernetes: 1\n", "`kubernetes` must be a mapping"),
        (&"a: &a [*a]\n".repeat(2), ""),
        (&format!("a: [{}]\n", "1,".repeat(20_000)), ""),
    ] {
        let error = base_configuration(base).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    assert!(base_configuration("").unwrap().is_empty() && base_configuration("{}\n").unwrap().is_empty());
}

#[test]
fn a_configuration_names_the_runtime_and_the_node_and_quotes_both() {
    let pods = InstallArgs {
        node_name: Some("a: b".into()),
        kubeconfig: Some("/k \"1\"".into()),
        ..request(Some(Role::Node))
    };
    let text = contents::configuration("unix:///run/x: y", &pods, &Map::new());
    let tree: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(tree["imageService"]["cri"]["endpoint"], "unix:///run/x: y");
    assert_eq!(tree["kubernetes"]["nodeName"], "a: b");
    assert_eq!(tree["kubernetes"]["kubeconfig"], "/k \"1\"");
}
