//! Which lines are accepted, and the size of each help.

use clap::CommandFactory as _;

use super::*;

fn read(line: &str) -> Result<Cli, clap::Error> {
    Cli::read(std::iter::once("imagelet").chain(line.split_whitespace()))
}

#[test]
fn the_command_line_holds_together() {
    Cli::command().debug_assert();
}

#[test]
fn global_flags_stand_before_or_after_the_command() {
    for line in ["-o json --store /s ls", "ls -o json --store /s", "--store /s ls -o json"] {
        let cli = read(line).expect("the line is accepted");
        assert_eq!(cli.global.output, Format::Json, "{line}");
        assert_eq!(cli.global.store.as_deref(), Some(std::path::Path::new("/s")), "{line}");
    }
}

#[test]
fn contradictions_and_unknown_words_are_usage_errors() {
    for line in [
        "install --role node",
        "install --uninstall --root /mnt",
        "install --role between --node-name a --kubeconfig /k",
        "pod install --host-namespace=/n --role=node --http-token=/t --proxy-password=/p --base-configuration=/c",
    ] {
        assert!(read(line).is_ok(), "{line}");
    }
    for line in [
        "",
        "frob",
        "pull",
        "ls --endpoint unix:///a --store /s",
        "--endpoint unix:///a ls --store /s",
        "serve --endpoint unix:///a",
        "serve --store /s --runtime-endpoint unix:///a",
        "gc --free 1Gi --high 50",
        "gc --free 1Gi --now",
        "gc --high 101",
        "gc --high 50 --low 90",
        "gc --low 51% --high 50%",
        "gc --free lots",
        "pull x --policy Sometimes",
        "pull x --platform linux",
        "-o xml ls",
        "completions tcsh",
        "ls --lock-timeout soon",
        "ls --lock-timeout=-1s",
        "ls --timeout soon",
        "ls --timeout=-1s",
        "serve --timeout 5s",
        "--timeout 5s serve",
        "install",
        "install --dry-run",
        "install --role=node --uninstall",
        "install --role=both",
        "install --uninstall --runtime-endpoint unix:///a",
        "install --role=node --node-name a",
        "install --role=node --kubeconfig /k",
        "install --uninstall --base-configuration /c",
        "pod install --role=node",
        "pod install --host-namespace=/n",
        "pod install --host-namespace=/n --role=node --root=/r",
        "pod install --host-namespace=/n --role=node --dry-run",
        "pod install --host-namespace=/n --uninstall --http-token=/t",
        "pod install --host-namespace=/n --uninstall --proxy-password=/p",
        "pod",
    ] {
        let error = read(line).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn a_collection_may_have_one_threshold_or_two_of_which_the_low_one_is_not_above() {
    for line in ["gc --high 50", "gc --low 90", "gc --high 50 --low 50", "gc --high 90 --low 50"] {
        assert!(read(line).is_ok(), "{line}");
    }
    let error = read("gc --high 50 --low 90").expect_err("refused").to_string();
    assert!(error.contains("'--low 90' must not be above '--high 50'"), "{error}");
}

#[test]
fn the_options_of_a_kubelets_unit_are_taken_or_ignored_by_name() {
    // As of kubeadm, k3s, RKE2, EKS and older nodes.
    let unit = "--config=/etc/c --config-dir=/etc/kubernetes/kubelet.conf.d --eviction-hard=imagefs.available<5%,nodefs.available<5% \
                --eviction-minimum-reclaim imagefs.available=10% --eviction-hard=memory.available<50Mi \
                --pod-infra-container-image=registry.k8s.io/pause:3.10 --max-pods 29 --v=2 -v 4 --fail-swap-on=false \
                --cgroup-driver systemd --cloud-provider= --node-labels=a=b,c=d --register-with-taints a=b:NoSchedule \
                --runonce --rotate-certificates --feature-gates=CloudDualStackNodeIPs=true,ImageMaximumGCAge=false \
                --container-runtime=remote --oom-score-adj -999 --image-gc-high-threshold=90 --image-gc-high-threshold=100 \
                --runtime-request-timeout=0 --serialize-image-pulls=true --serialize-image-pulls=F \
                --local-storage-capacity-isolation=True --storage-driver-secure --storage-driver-secure=false \
                --bootstrap-kubeconfig=/b --kubeconfig=/k";
    for command in ["serve", "config show"] {
        let cli = read(&format!("{command} {unit}")).expect("accepted");
        let arguments = match cli.command {
            Command::Serve(arguments) | Command::Config(ConfigCommand::Show(arguments)) => *arguments,
            other => panic!("{other:?}"),
        };
        let given: Vec<String> =
            arguments.kubelet.iter().map(|(flag, key, value)| format!("{flag} {key} {value}")).collect();
        assert_eq!(
            given,
            [
                "--image-gc-high-threshold imageGCHighThresholdPercent 100",
                "--serialize-image-pulls serializeImagePulls false",
                r#"--pod-infra-container-image podInfraContainerImage "registry.k8s.io/pause:3.10""#,
                "--feature-gates featureGates.ImageMaximumGCAge false",
                "--max-pods maxPods 29",
                "--local-storage-capacity-isolation localStorageCapacityIsolation true",
            ]
        );
        let warnings: Vec<String> = arguments.ignored_options(false).collect();
        let [warning, of_kubeconfig] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(of_kubeconfig.starts_with("--kubeconfig is ignored: neither --node-name"), "{of_kubeconfig}");
        assert_eq!(arguments.ignored_options(true).count(), 1);
        for name in [
            "v",
            "storage-driver-secure",
            "fail-swap-on",
            "cgroup-driver",
            "cloud-provider",
            "node-labels",
            "runonce",
            "eviction-hard",
            "eviction-minimum-reclaim",
            "oom-score-adj",
        ] {
            assert!(warning.contains(&format!("--{name}")), "{name}: {warning}");
        }
        assert!(!warning.contains("--max-pods") && !warning.contains("--docker"), "{warning}");
    }
    assert_eq!(ServeArgs::default().ignored_options(false).count(), 0);
    for line in [
        "serve --eviction-hrad=a<1%",
        "serve --feature-gates=A=perhaps",
        "serve --serialize-image-pulls=perhaps",
        "pull --node-ip 1 a",
    ] {
        assert_eq!(read(line).expect_err(line).exit_code(), 2, "{line}");
    }
}

#[test]
fn the_arguments_of_the_manifests_are_accepted() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
    let manifests = std::fs::read_to_string(format!("{folder}/imagelet.yaml")).expect("a file");
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&manifests).expect("YAML");
    let pods = documents.iter().map(|one| &one["spec"]["template"]["spec"]);
    let containers = pods.flat_map(|pod| [&pod["initContainers"], &pod["containers"]]);
    let containers = containers.flat_map(|found| found.as_array().into_iter().flatten());
    let mut found = Vec::new();
    for container in containers {
        let arguments =
            container["args"].as_array().expect("arguments").iter().map(|one| one.as_str().expect("a text"));
        let line = arguments.collect::<Vec<_>>().join(" ").replace("$(NODE_NAME)", "node-1");
        let cli = read(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        found.push(match cli.command {
            Command::Controller(_) => "controller",
            Command::Pod(PodCommand::Wait) => "pod wait",
            Command::Pod(PodCommand::Install(PodInstallArgs { install, .. })) if install.node_name.is_some() => {
                "pod install"
            }
            other => panic!("{other:?}"),
        });
    }
    found.sort_unstable();
    assert_eq!(found, ["controller", "pod install", "pod wait"]);

    // What `node.remove` gives the containers, and what docs/cluster.md has for kubectl.
    let removal = ["pod", "install", "--host-namespace=/host/ns/mnt", "--uninstall"];
    assert!(read(&removal.join(" ")).is_ok());
    let template = std::fs::read_to_string(format!("{folder}/chart/imagelet/templates/node.yaml")).expect("a file");
    let lines = removal.map(|argument| format!("        - {argument}\n")).concat();
    assert!(template.contains(&lines), "{lines}");
    let page = std::fs::read_to_string(format!("{folder}/../docs/cluster.md")).expect("a file");
    assert!(page.contains(&format!("{removal:?}").replace(", ", ",")), "docs/cluster.md has other arguments");
}

#[test]
fn only_what_changes_a_store_is_opened_to_change_it_and_only_what_fills_one_makes_it() {
    let (looks, changes, makes) =
        (Access::Read { or_empty: true }, Access::Write { or_create: false }, Access::Write { or_create: true });
    for (line, expected) in [
        ("ls", looks),
        ("inspect x", looks),
        ("df", looks),
        ("why x", looks),
        ("status", looks),
        ("pins", looks),
        ("gc --dry-run", looks),
        ("verify", looks),
        ("verify --repair", changes),
        ("gc", changes),
        ("rm x", changes),
        ("untag x", changes),
        ("unpin x", changes),
        ("mount x /m", changes),
        ("unmount /m", changes),
        ("pull x", makes),
        ("ensure -f x", makes),
        ("pin x", makes),
        ("serve", makes),
    ] {
        assert_eq!(read(line).expect(line).command.store_access(), expected, "{line}");
    }
}

#[test]
fn a_wait_is_written_as_a_duration() {
    let waits = |line: &str| read(line).expect(line).global.lock_timeout;
    assert_eq!(waits("ls"), None);
    assert_eq!(waits("rm x --lock-timeout 1m30s"), Some(Duration::from_secs(90)));
    assert_eq!(waits("--lock-timeout 0 rm x"), Some(Duration::ZERO));
}

#[test]
fn pull_asks_the_registry_only_for_what_is_absent_by_default() {
    let cli = read("pull a b").expect("accepted");
    let Command::Pull(pull) = cli.command else { panic!("another command") };
    assert_eq!((pull.images.len(), pull.policy.as_str()), (2, "IfNotPresent"));
    for (line, expected) in [("--platform linux/arm64", "Always"), ("--platform linux/arm64 --policy Never", "Never")] {
        let Command::Pull(pull) = read(&format!("pull a {line}")).expect(line).command else { panic!("{line}") };
        assert_eq!(pull.policy, expected, "{line}");
    }
}

/// Each command with its path, subcommands of subcommands included.
fn commands() -> Vec<(String, clap::Command)> {
    let mut whole = command().term_width(80);
    whole.build();
    let mut found = vec![(String::new(), whole.clone())];
    let mut next = 0;
    while next < found.len() {
        let (path, above) = found[next].clone();
        let below = above.get_subcommands().filter(|one| one.get_name() != "help" && !one.is_hide_set());
        found.extend(below.map(|one| (format!("{path} {}", one.get_name()).trim().to_owned(), one.clone())));
        next += 1;
    }
    found
}

#[test]
fn the_help_of_each_command_fits_a_screen_and_ends_with_an_example_that_is_accepted() {
    let commands = commands();
    assert!(commands.len() > 25, "{}", commands.len());
    let mut wrong = Vec::new();
    for (path, command) in commands {
        let text = command.term_width(80).render_help().to_string();
        let (lines, columns) = (text.trim_end().lines().count(), text.lines().map(|line| line.chars().count()).max());
        if lines > 24 || columns > Some(80) {
            wrong.push(format!("`{path} -h` has {lines} lines, {columns:?} columns:\n{text}"));
        }
        let Some((_, example)) = text.split_once("Example: ") else {
            wrong.push(format!("`{path} -h` has no example:\n{text}"));
            continue;
        };
        let line = example.lines().next().expect("a line").replace('\'', "");
        let words = line.trim_start_matches("source <(").trim_end_matches(')').split(" <").next().expect("words");
        if let Err(error) = Cli::read(words.split_whitespace()) {
            wrong.push(format!("the example of `{path}`: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_first_screen_names_each_command() {
    let text = command().render_help().to_string();
    for (path, _) in commands().into_iter().filter(|(path, _)| !path.is_empty() && !path.contains(' ')) {
        let is_named = text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == path);
        assert!(is_named, "`{path}` is missing in a group:\n{text}");
    }
}

#[test]
fn the_names_that_docker_uses_are_understood() {
    for (line, is_right) in [
        ("images --filter dangling=true", matches!(read("images").expect("it reads").command, Command::Ls(_))),
        ("rmi x", matches!(read("rmi x").expect("it reads").command, Command::Rm { .. })),
        (
            "prune -a",
            matches!(read("prune -a").expect("it reads").command, Command::Gc(GcArgs { all_unused: true, .. })),
        ),
    ] {
        assert!(is_right && read(line).is_ok(), "{line}");
    }
}
