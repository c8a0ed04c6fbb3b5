//! Configurations that are none, that lie, or that would like to be obeyed.

use imagelet_core::{
    error::RuntimeErrorKind::{Corrupt, Unacceptable},
    image::ImageUser,
};
use serde_json::json;

use super::{
    case::{Bench, Case, Look, config_of},
    child,
    image::{ARCHITECTURE, Image, Layer, OTHER},
    registry::Answer,
};

/// Told as tests of their own below.
pub(crate) const STORIES: &[&str] = &["B064"];

fn b064() -> Vec<Case> {
    let bytes = |name: &'static str, config: Vec<u8>| {
        let image = Image::of([Layer::gzip("x", b"x")]).with_config(config);
        let digest = image.config_digest();
        Case::new("B064", name, image).fails(Corrupt, &["configuration", &digest])
    };
    let text = |name: &'static str, config: &str| bytes(name, config.as_bytes().to_vec());
    // Without an index the label is no reason to refuse an image, as in the runtimes.
    let labelled = |name: &'static str, os: &str, architecture: &str| {
        let image =
            Image::good("m").config(|config| (config["os"], config["architecture"]) = (os.into(), architecture.into()));
        Case::new("B064", name, image)
    };
    let machine = |name: &'static str, os: &str, architecture: &str, words: &[&str]| {
        let image =
            Image::good("m").config(|config| (config["os"], config["architecture"]) = (os.into(), architecture.into()));
        Case::new("B064", name, image).fails(Unacceptable, words)
    };
    let here = json!({"os": "linux", "architecture": ARCHITECTURE});
    let large = Image::good("large").manifest(|manifest| manifest["config"]["size"] = (64 << 20).into());
    let over = Image::good("over").manifest(|manifest| manifest["config"]["size"] = ((8 << 20) + 1).into());
    let padded = |length: usize| {
        let image = Image::good("padded");
        let mut config = image.config_bytes().to_vec();
        config.resize(length, b' ');
        image.with_config(config)
    };
    vec![
        text("not JSON", "architecture: amd64"),
        text("a page", "<html>please log in</html>"),
        text("empty", ""),
        text("null", "null"),
        text("a list", "[]"),
        text("half of one", "{\"architecture\":\"amd64\","),
        text("without rootfs", "{\"architecture\":\"amd64\",\"os\":\"linux\"}").fails(Corrupt, &["rootfs"]),
        text("rootfs null", "{\"rootfs\":null}").fails(Corrupt, &["rootfs"]),
        text("rootfs a text", "{\"rootfs\":\"layers\"}"),
        text("an empty object", "{}").fails(Corrupt, &["rootfs"]),
        text("rootfs twice", "{\"rootfs\":{},\"rootfs\":{\"diff_ids\":[]}}"),
        bytes("deep", "{\"history\":".repeat(300_000).into_bytes()),
        text(
            "nested too deeply where nothing reads it",
            &format!("{{\"rootfs\":{{}},\"unread\":{}{}}}", "[".repeat(128), "]".repeat(128)),
        )
        .fails(Corrupt, &["nested 129 levels deep"]),
        bytes("no UTF-8", b"{\"os\":\"\xff\",\"rootfs\":{}}".to_vec()),
        labelled("another processor", "linux", OTHER),
        machine("another system", "windows", ARCHITECTURE, &["windows", "linux"]),
        machine("another system and no processor", "windows", "", &["windows", "linux"]),
        labelled("an unknown processor", "linux", "pdp11"),
        labelled("a processor of control characters", "linux", "a\u{1b}[2J"),
        Case::new(
            "B064",
            "a processor of control characters below an index",
            Image::good("m").config(|config| config["architecture"] = "a\u{1b}[2J".into()).below_index(&json!(null)),
        )
        .fails(Unacceptable, &["a?[2J"]),
        Case::new(
            "B064",
            "another processor below an index",
            Image::good("m").config(|config| config["architecture"] = OTHER.into()).below_index(&json!(null)),
        )
        .fails(Unacceptable, &[OTHER, ARCHITECTURE]),
        // The index decides where it names a platform.
        Case::new(
            "B064",
            "another processor than the index says",
            Image::good("m").config(|config| config["architecture"] = OTHER.into()).below_index(&here),
        ),
        Case::new("B064", "said to be 64 MiB", large.clone())
            .fails(Unacceptable, &[&large.config_digest(), "58.7MB", "8.39MB"])
            .never_asks("/blobs/"),
        Case::new("B064", "said to be a byte too long", over.clone())
            .fails(Unacceptable, &[&over.config_digest(), "1B beyond the limit of 8.39MB"])
            .never_asks("/blobs/"),
        Case::new("B064", "as much as is taken", padded(8 << 20)),
        Case::new("B064", "endless", Image::good("e").serving_config(Answer::endless("", "{", vec![b' '; 64 << 10])))
            .fails(Corrupt, &[&Image::good("e").config_digest()]),
        Case::new("B064", "missing", Image::good("gone").serving_config(Answer::ok("", "").status(404)))
            .fails(imagelet_core::error::RuntimeErrorKind::NotFound, &[&Image::good("gone").config_digest()]),
        Case::new(
            "B064",
            "no machine named",
            Image::good("any").config(|config| {
                let config = config.as_object_mut().expect("an object");
                config.remove("os");
                config.remove("architecture");
            }),
        ),
        Case::new("B064", "no layers, and said so", Image::of([])),
    ]
}

fn b065() -> Vec<Case> {
    let user = |name: &'static str, user: &str, look: Look| {
        Case::new("B065", name, Image::good("u").config(|config| config["config"] = json!({"User": user}))).looks(look)
    };
    let nobody: Look = |listed, _| assert_eq!(listed.user, ImageUser::Unset);
    let named_by_digits: Look =
        |listed, _| assert!(matches!(&listed.user, ImageUser::Name(name) if name.contains("99")));
    vec![
        user("empty", "", nobody),
        user("zero", "0", |listed, _| assert_eq!(listed.user, ImageUser::Uid(0))),
        user("the highest", "4294967295", |listed, _| assert_eq!(listed.user, ImageUser::Uid(4_294_967_295))),
        user("a number and a group", "1000:100", |listed, _| assert_eq!(listed.user, ImageUser::Uid(1000))),
        user("a name", "www-data", |listed, _| assert_eq!(listed.user, ImageUser::Name("www-data".into()))),
        user("a name and a group", "www-data:www", |listed, _| {
            assert_eq!(listed.user, ImageUser::Name("www-data".into()));
        }),
        // Told as it is, and warned of: who must not run root refuses a name, and takes nobody for anybody.
        user("one above the highest", "4294967296", |listed, _| assert_eq!(listed.user, ImageUser::Uid(1 << 32))),
        user("what wraps to root", "18446744073709551616", |listed, _| {
            assert_eq!(listed.user, ImageUser::Name("18446744073709551616".into()));
        }),
        user("minus one", "-1", |listed, _| assert_eq!(listed.user, ImageUser::Uid(-1))),
        user("beyond any number", "99999999999999999999999999999999", named_by_digits),
        user("beyond any number, with a sign", "-99999999999999999999999999999999", named_by_digits),
        user("beyond any number, with another sign", "+99999999999999999999999999999999", named_by_digits),
        user("a group alone", ":100", nobody),
        Case::new("B065", "null", Image::good("u").config(|config| config["config"] = json!({"User": null})))
            .looks(nobody),
        Case::new(
            "B065",
            "a number that is none",
            Image::good("u").config(|config| config["config"] = json!({"User": 1000})),
        )
        .fails(Corrupt, &["configuration"]),
    ]
}

fn b066() -> Vec<Case> {
    let labelled = |name: &'static str, labels: serde_json::Value, look: Look| {
        Case::new("B066", name, Image::good("l").config(|config| config["config"] = json!({"Labels": labels})))
            .looks(look)
    };
    vec![
        labelled(
            "labels like those that control",
            json!({
                "io.cri-containerd.pinned": "pinned", "io.cri-containerd.image": "managed", "imagelet.dev/pinned": "true",
                "containerd.io/gc.root": "2030-01-01T00:00:00Z", "containerd.io/gc.ref.snapshot.overlayfs": "sha256:00",
                "containerd.io/distribution.source.docker.io": "library/secret", "io.kubernetes.pod.uid": "1",
            }),
            |listed, details| {
                assert!(!listed.pinned, "a label pinned it");
                assert_eq!(listed.tags.len(), 1, "a label made a name");
                assert_eq!(config_of(details)["config"]["Labels"]["io.cri-containerd.pinned"], "pinned");
            },
        ),
        labelled("a label of 6 KiB", json!({"long": "x".repeat(6 << 10)}), |_, details| {
            assert_eq!(config_of(details)["config"]["Labels"]["long"].as_str().map(str::len), Some(6 << 10));
        }),
        labelled("a name of 6 KiB", json!({"x".repeat(6 << 10): "1"}), |listed, _| assert!(!listed.pinned)),
        labelled("a thousand labels", (0..1000).map(|number| (format!("l{number}"), json!("v"))).collect::<serde_json::Map<_, _>>().into(), |_, details| {
            assert_eq!(config_of(details)["config"]["Labels"].as_object().map(serde_json::Map::len), Some(1000));
        }),
        labelled("labels with what breaks lines", json!({"a\nb": "c\u{0}d\u{1b}[31m", "": ""}), |_, details| {
            assert_eq!(config_of(details)["config"]["Labels"]["a\nb"], "c\u{0}d\u{1b}[31m");
        }),
        Case::new("B066", "annotations like those that control", Image::good("a").manifest(|manifest| {
            manifest["annotations"] = json!({"org.opencontainers.image.ref.name": "library/other:latest", "io.containerd.image.name": "docker.io/library/other:latest"});
            manifest["layers"][0]["annotations"] = json!({"containerd.io/uncompressed": "sha256:00", "io.containers.zstd-chunked.manifest-position": "-1"});
        }))
        .looks(|listed, _| assert_eq!(listed.tags.len() + listed.digests.len(), 2, "an annotation made a name")),
    ]
}

fn b067() -> Vec<Case> {
    let volumes: Look = |_, details| {
        let config = config_of(details);
        let volumes = config["config"]["Volumes"].as_object().expect("volumes");
        for path in ["/../../etc", "/etc", "..", "", "/var/lib/imagelet", "/proc/self/root", "a\u{0}b"] {
            assert!(volumes.contains_key(path), "`{path}` is not told as it was written");
        }
        assert_eq!(config_of(details)["config"]["WorkingDir"], "../../..");
        assert_eq!(config_of(details)["config"]["Entrypoint"][0], "/../../bin/sh");
    };
    let with = Image::good("v").config(|config| {
        config["config"] = json!({
            "Volumes": {"/../../etc": {}, "/etc": {}, "..": {}, "": {}, "/var/lib/imagelet": {}, "/proc/self/root": {}, "a\u{0}b": {}},
            "WorkingDir": "../../..",
            "Entrypoint": ["/../../bin/sh"],
            "ExposedPorts": {"-1/x": {}},
            "StopSignal": "SIGKILL; rm -rf /",
        });
    });
    vec![
        Case::new("B067", "volumes of the host", with).looks(volumes),
        Case::new(
            "B067",
            "volumes null",
            Image::good("v").config(|config| config["config"] = json!({"Volumes": null})),
        ),
        Case::new(
            "B067",
            "volumes with values",
            Image::good("v").config(|config| config["config"] = json!({"Volumes": {"/data": {"source": "/etc"}}})),
        )
        .looks(|_, details| assert_eq!(config_of(details)["config"]["Volumes"]["/data"]["source"], "/etc")),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    [b064(), b065(), b066(), b067()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_is_none_or_for_another_machine_is_refused() {
    Bench::new().await.hold(b064()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_is_told_exactly_or_not_at_all() {
    Bench::new().await.hold(b065()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_and_annotations_do_nothing() {
    Bench::new().await.hold(b066()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_in_a_configuration_are_told_and_never_used() {
    Bench::new().await.hold(b067()).await;
}

/// A configuration may be 8 MiB long; what is made of it in memory may not be many times that.
const CONFIG_MEMORY_MAX: u64 = 64 << 20;

#[test]
fn no_configuration_takes_much_more_memory_than_its_bytes() {
    child::alone("configs::no_configuration_takes_much_more_memory_than_its_bytes", async {
        let filled = |head: &str, unit: &str, tail: &str| {
            let count = ((8 << 20) - head.len() - tail.len()) / unit.len();
            [head, &unit.repeat(count), tail].concat().into_bytes()
        };
        let bench = Bench::new().await;
        for (name, config) in [
            ("environment", filled("{\"rootfs\":{},\"config\":{\"Env\":[", "\"\",", "\"\"]}}")),
            ("labels", filled("{\"rootfs\":{},\"config\":{\"Labels\":{\"b\":\"\"", ",\"a\":\"\"", "}}}")),
            ("volumes", filled("{\"rootfs\":{},\"config\":{\"Volumes\":{\"b\":{}", ",\"a\":{}", "}}}")),
            ("history", filled("{\"rootfs\":{},\"history\":[", "{},", "{}]}")),
            ("diff-ids", filled("{\"rootfs\":{\"diff_ids\":[", "\"\",", "\"\"]}}")),
        ] {
            let image = Image::of([Layer::gzip("x", b"x")]).with_config(config);
            let name = bench.registry.put(name, &image);
            let (pulled, peak) = child::peak_of(super::case::pull(&bench.engine, &name)).await;
            let error = pulled.expect_err("none of them is of an image");
            assert!(peak <= CONFIG_MEMORY_MAX, "{name}: {peak} bytes: {}", error.chain());
        }
    });
}
