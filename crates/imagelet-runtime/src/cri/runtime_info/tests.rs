//! Reports of runtimes over CRI, and the result of reading them.

use std::time::SystemTime;

use super::*;
use imagelet_core::{image::ByteSize, ports::FilesystemUsage};

/// What containerd 1.6 reports, shortened.
const CONTAINERD_1_6: &str = r#"{"containerd":{"snapshotter":"overlayfs","defaultRuntimeName":"runc",
  "defaultRuntime":{"runtimeType":"","options":null},"runtimes":{"runc":{"runtimeType":"io.containerd.runc.v2",
  "options":{"BinaryName":""}},"kata":{"snapshotter":"devmapper"}}},"registry":{"configPath":"/a/certs.d:/b/certs.d",
  "mirrors":{"r.io:5000":{"endpoint":["http://x"]}},"configs":{"private.io":{"auth":{"username":"u","password":"p"},
  "tls":null}},"auths":{"https://old.io/v1":{}},"headers":{"User-Agent":["c"]}},
  "imageDecryption":{"keyModel":"node"},"sandboxImage":"registry.k8s.io/pause:3.6"}"#;
/// containerd 2 reports nothing about images.
const CONTAINERD_2: &str = r#"{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"runtimeType":"r",
  "snapshotter":"","sandboxer":"podsandbox"}}},"enableSelinux":false}"#;

fn read(config: &str, warning: &str) -> RuntimeConfiguration {
    let info = BTreeMap::from([("config".to_owned(), config.to_owned())]);
    RuntimeConfiguration::read(&info, &BTreeMap::from([(DEPRECATIONS.to_owned(), warning.to_owned())]))
}

fn places(mountpoints: &[&str]) -> Vec<SnapshotterPlace> {
    let usage = |mountpoint: &&str| FilesystemUsage {
        measured_at: SystemTime::UNIX_EPOCH,
        mountpoint: mountpoint.into(),
        used: ByteSize::ZERO,
        inodes_used: None,
    };
    let images = mountpoints.iter().map(usage).collect();
    SnapshotterPlace::all(&ImageFilesystems { images, ..ImageFilesystems::default() })
}

#[test]
fn containerd_1_6_reports_snapshotters_and_registries() {
    let read = read(CONTAINERD_1_6, "");
    assert_eq!(read.snapshotter.as_deref(), Some("overlayfs"));
    let handlers: Vec<_> = read.handlers.iter().map(|(name, own)| (name.as_str(), own.as_str())).collect();
    assert_eq!(handlers, [("kata", "devmapper"), ("runc", "")]);
    assert_eq!(read.sandbox_images, ["registry.k8s.io/pause:3.6"]);
    for (registry, unread) in [
        ("r.io:5000", Some("registry.mirrors")),
        ("private.io", Some("registry.configs")),
        ("old.io", Some("registry.configs")),
        ("r.io", None),
        ("docker.io", None),
    ] {
        assert_eq!(read.registries.unread(registry), unread, "{registry}");
    }
    let RegistrySettings::Reported { folders, .. } = &read.registries else { panic!("{read:?}") };
    assert_eq!(folders, &[PathBuf::from("/a/certs.d"), PathBuf::from("/b/certs.d")]);
    assert!(!format!("{read:?}").contains("\"p\""), "a password is not kept");
}

#[test]
fn containerd_2_reports_no_registries_and_warns_of_deprecated_ones() {
    let plain = read(CONTAINERD_2, "");
    assert_eq!((plain.snapshotter.as_ref(), plain.registries.unread("r.io")), (None, None));
    let warned = read(CONTAINERD_2, r#"{"io.containerd.deprecation/cri-registry-mirrors":"The `mirrors` …"}"#);
    assert_eq!(warned.registries.unread("r.io"), Some("a deprecated registry setting"));
    let other = read(CONTAINERD_2, r#"{"io.containerd.deprecation/pull-schema-1-image":"…"}"#);
    assert_eq!(other.registries.unread("r.io"), None);
}

#[test]
fn a_mirror_of_all_registries_and_a_header_are_for_each_one() {
    for (registry, unread) in [
        (r#"{"mirrors":{"*":{}}}"#, Some("registry.mirrors")),
        (r#"{"headers":{"X-Meta":["a"]}}"#, Some("registry.headers")),
        (r#"{"configs":{"registry-1.docker.io":{}}}"#, Some("registry.configs")),
        (r#"{"mirrors":null,"configs":null,"auths":null,"headers":null,"configPath":""}"#, None),
    ] {
        let read = read(&format!(r#"{{"registry":{registry}}}"#), "");
        assert_eq!(read.registries.unread("docker.io"), unread, "{registry}");
    }
}

#[test]
fn an_unreadable_report_may_hold_any_setting() {
    let huge = format!(r#"{{"pad":"{}"}}"#, "x".repeat(JSON_BYTES_MAX));
    for text in ["x", "7", &"[".repeat(100_000), &huge] {
        assert_eq!(read(text, "").registries.unread("r.io"), Some("a deprecated registry setting"), "{text:.40}");
    }
    let silent = RuntimeConfiguration::read(&BTreeMap::new(), &BTreeMap::new());
    assert_eq!(silent, RuntimeConfiguration::default(), "a runtime that reports nothing has no such settings");
}

#[test]
fn the_root_is_where_the_snapshotter_lies() {
    let overlay = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs";
    let facts = |mountpoints: &[&str]| RuntimeInfo { places: places(mountpoints), ..RuntimeInfo::default() };
    let one = facts(&[overlay, overlay]);
    let root = |facts: &RuntimeInfo| facts.place().map(|place| place.root.clone());
    assert_eq!((root(&one), one.snapshotter()), (Some("/var/lib/containerd".into()), Some("overlayfs")));
    assert_eq!(one.places[0].folder(), Path::new(overlay));
    let two = facts(&[overlay, "/var/lib/containerd/io.containerd.snapshotter.v1.nydus"]);
    assert_eq!((root(&two), two.snapshotter()), (Some("/var/lib/containerd".into()), None));
    for elsewhere in ["/var/lib/containers/storage/overlay-images", "io.containerd.snapshotter.v1.overlayfs", "/", ""] {
        assert_eq!(facts(&[elsewhere]).place(), None, "{elsewhere}");
    }
}

#[test]
fn the_image_of_sandboxes_is_known_by_any_spelling() {
    let facts = |name: &str| {
        let configuration = RuntimeConfiguration { sandbox_images: vec![name.into()], ..Default::default() };
        RuntimeInfo { configuration, ..RuntimeInfo::default() }
    };
    let digest = format!("sha256:{}", "a".repeat(64));
    let is = |configured: &str, asked: &str| facts(configured).is_sandbox_image(&asked.parse().expect("a name"));
    assert!(is("registry.k8s.io/pause:3.6", "registry.k8s.io/pause:3.6"));
    assert!(is("pause", "docker.io/library/pause:latest"));
    assert!(is(&format!("r.io/pause@{digest}"), &format!("r.io/pause:3@{digest}")));
    assert!(!is("registry.k8s.io/pause:3.6", "registry.k8s.io/pause:3.7"));
    assert!(!is("registry.k8s.io/pause:3.6", "r.io/pause:3.6"));
}
