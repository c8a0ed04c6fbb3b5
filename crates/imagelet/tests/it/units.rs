//! The units of systemd in the documents and the package: what Debian 12's release understands, and a configuration that is
//! there; and the manual pages of a package.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    program::{program, run},
    source::repository,
    testbed::scratch,
};

const PAGE: &str = "../../docs/operations.md";

/// The directives that systemd 252 knows, of those that our units may need.
const KNOWN: [(&str, &[&str]); 4] = [
    ("Unit", &["Description", "Documentation", "Requires", "Wants", "After", "Before"]),
    ("Socket", &["ListenStream", "SocketMode", "SocketUser", "SocketGroup", "DirectoryMode", "FileDescriptorName"]),
    (
        "Service",
        &[
            "Type",
            "ExecStart",
            "ExecReload",
            "Restart",
            "RestartSec",
            "WatchdogSec",
            "TimeoutStopSec",
            "OOMScoreAdjust",
            "LimitNOFILE",
            "NoNewPrivileges",
            "CapabilityBoundingSet",
            "RestrictAddressFamilies",
            "RestrictNamespaces",
            "RestrictRealtime",
            "LockPersonality",
            "SystemCallArchitectures",
            "SystemCallFilter",
            "SystemCallErrorNumber",
            "MemoryHigh",
            "MemoryMax",
        ],
    ),
    ("Install", &["WantedBy"]),
];
/// The types of a service that it knows; `notify-reload` came with 253.
const TYPES: [&str; 7] = ["simple", "exec", "forking", "oneshot", "dbus", "notify", "idle"];

/// Every file that the page has in a block, by its path, which is the block's first line.
fn documented() -> BTreeMap<PathBuf, String> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
    let blocks = page.split("\n```").skip(1).step_by(2);
    let files = blocks.filter_map(|block| {
        let (_, text) = block.split_once('\n')?;
        let path = text.lines().next()?.strip_prefix("# /etc/")?;
        Some((Path::new("/etc").join(path), format!("{text}\n")))
    });
    files.collect()
}

/// The settings of a unit, with the section of each.
fn settings(unit: &str) -> Vec<(&str, &str, &str)> {
    let mut section = "";
    let mut settings = Vec::new();
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => section = name,
            None => settings.push(line.split_once('=').map(|(name, value)| (section, name, value)).unwrap()),
        }
    }
    settings
}

#[test]
fn the_documented_units_have_nothing_that_systemd_252_does_not_know() {
    let files = documented();
    let units: Vec<_> = files.iter().filter(|(path, _)| path.starts_with("/etc/systemd")).collect();
    assert_eq!(units.len(), 3, "the socket, the service and the kubelet's drop-in: {:?}", files.keys());
    for (path, unit) in units {
        for (section, name, value) in settings(unit) {
            let known = KNOWN.iter().find(|(known, _)| *known == section).map_or(&[][..], |(_, names)| names);
            assert!(
                known.contains(&name),
                "{}: [{section}] {name}= is not on the list for systemd 252",
                path.display()
            );
            assert!(
                name != "Type" || TYPES.contains(&value),
                "{}: Type={value} came after systemd 252",
                path.display()
            );
        }
    }
}

#[test]
fn each_line_that_restricts_the_service_says_why() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
    let rows: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next()).collect();
    let plain = ["ExecStart", "ExecReload", "Restart", "RestartSec", "TimeoutStopSec"];
    for (_, key, _) in settings(&documented()[Path::new("/etc/systemd/system/imagelet.service")])
        .into_iter()
        .filter(|(section, key, _)| *section == "Service" && !plain.contains(key))
    {
        let key = if key.starts_with("Restrict") { "Restrict…" } else { key };
        assert!(rows.iter().any(|row| row.contains(&format!("{key}="))), "no row says why the service has `{key}=`");
    }
}

#[test]
fn the_service_names_a_configuration_that_the_page_has_and_the_program_accepts() {
    let files = documented();
    let service = &files[Path::new("/etc/systemd/system/imagelet.service")];
    let start = settings(service).into_iter().find(|(_, name, _)| *name == "ExecStart").unwrap().2;
    let config = start.split(' ').skip_while(|word| *word != "--config").nth(1).expect("it names a configuration");
    let text = files.get(Path::new(config)).unwrap_or_else(|| panic!("no block of the page is `{config}`"));
    let folder = scratch();
    let path = folder.path().join("config.yaml");
    fs::write(&path, text).unwrap();
    run(program().args(["config", "check"]).arg(&path)).ok();
}

#[test]
fn the_package_has_the_documented_units_for_its_own_path_and_a_configuration_that_the_program_accepts() {
    let packaging = repository().join("packaging");
    let files = documented();
    for name in ["imagelet.socket", "imagelet.service"] {
        let packaged = fs::read_to_string(repository().join("crates/imagelet/src/install").join(name)).unwrap();
        let documented = files[&Path::new("/etc/systemd/system").join(name)].replace("/usr/local/bin/", "/usr/bin/");
        assert_eq!(settings(&packaged), settings(&documented), "{name}");
    }
    run(program().args(["config", "check"]).arg(packaging.join("config.yaml"))).ok();
}

#[test]
fn each_command_has_a_manual_page_and_hidden_ones_have_none() {
    let folder = scratch();
    run(program().arg("man").arg(folder.path())).ok();
    let mut pages = BTreeMap::new();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        pages.insert(path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(path).unwrap());
    }
    let help = run(program().arg("help")).ok();
    let commands = help.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<_> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"serve") && names.contains(&"why"), "{names:?}");
    for name in names {
        let page = pages.get(&format!("imagelet-{name}.1")).unwrap_or_else(|| panic!("`{name}` has no page"));
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(pages["imagelet.1"].contains("imagelet\\-pull(1)"), "the first page names the others");
    assert!(!pages.contains_key("imagelet-man.1"), "a hidden command has a page");
    run(program().arg("man").arg(folder.path().join("made/for/them"))).ok();
    let file = folder.path().join("imagelet.1");
    let refused = run(program().arg("man").arg(file)).refused(&["cannot write manual pages to"]);
    assert!(refused.contains("File exists"), "{refused}");
}

#[test]
fn systemd_finds_nothing_wrong_with_the_documented_units() {
    let folder = scratch();
    let units = folder.path().join("systemd/system");
    for (path, text) in documented() {
        let path = folder.path().join(path.strip_prefix("/etc").unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.replace("/usr/local/bin/imagelet", env!("CARGO_BIN_EXE_imagelet"))).unwrap();
    }
    fs::write(units.join("kubelet.service"), "[Unit]\nDescription=kubelet\n[Service]\nExecStart=/bin/true\n").unwrap();
    let mut verify = Command::new("systemd-analyze");
    // The machine's own units stand behind ours; without a pager and colours.
    verify.env("SYSTEMD_UNIT_PATH", format!("{}:", units.display())).env("SYSTEMD_COLORS", "0");
    // The manual page is there once installed.
    verify
        .args(["verify", "--man=no"])
        .args(["imagelet.socket", "imagelet.service", "kubelet.service"].map(|name| units.join(name)));
    let outcome = run(&mut verify);
    assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()), (0, "", ""));
}
