//! The kubelet's own flags on the daemon: they win over its file, and a bad value is refused by the flag's name.

use serde_json::{Value, json};

use crate::{
    program::{program, run},
    testbed::scratch,
};

/// A flag as it is given, the key that it sets, and the value of that key.
fn flags() -> [(&'static str, &'static str, Value); 8] {
    [
        ("--image-gc-high-threshold=70", "imageGCHighThresholdPercent", json!(70)),
        ("--image-gc-low-threshold=60", "imageGCLowThresholdPercent", json!(60)),
        ("--minimum-image-ttl-duration=5m", "imageMinimumGCAge", json!("5m0s")),
        ("--maximum-image-ttl-duration=24h", "imageMaximumGCAge", json!("24h0m0s")),
        ("--serialize-image-pulls=false", "serializeImagePulls", json!(false)),
        ("--registry-qps=7", "registryPullQPS", json!(7)),
        ("--registry-burst=14", "registryBurst", json!(14)),
        ("--max-parallel-image-pulls=4", "maxParallelImagePulls", json!(4)),
    ]
}

fn setting<'a>(shown: &'a Value, key: &str) -> &'a Value {
    let settings = shown["settings"].as_array().unwrap();
    settings.iter().find(|one| one["key"] == key).unwrap_or_else(|| panic!("no `{key}`: {shown:#}"))
}

#[test]
fn the_kubelets_flags_win_over_both_files_and_are_shown_as_the_source() {
    let folder = scratch();
    let (kubelet, own) = (folder.path().join("kubelet.yaml"), folder.path().join("imagelet.yaml"));
    std::fs::write(&kubelet, "kind: KubeletConfiguration\nimageGCHighThresholdPercent: 90\nregistryPullQPS: 1\n")
        .unwrap();
    std::fs::write(&own, "imageGCLowThresholdPercent: 20\nserializeImagePulls: true\n").unwrap();
    let flags = flags();
    let shown = run(program()
        .args(["config", "show", "-o", "json", "--kubelet-config"])
        .arg(&kubelet)
        .arg("--config")
        .arg(&own)
        .args(flags.iter().map(|(flag, _, _)| flag)))
    .json();
    for (flag, key, value) in &flags {
        let setting = setting(&shown, key);
        assert_eq!(&setting["value"], value, "{flag}");
        assert_eq!(setting["source"], flag.split('=').next().unwrap(), "{flag}");
    }
    // As the kubelet's: without a value it is true, and a burst of 0 is the default.
    let shown =
        run(program().args(["config", "show", "-o", "json", "--serialize-image-pulls", "--registry-burst", "0"]))
            .json();
    assert_eq!(setting(&shown, "serializeImagePulls")["source"], "--serialize-image-pulls");
    assert_eq!(setting(&shown, "registryBurst")["value"], 10);
}

#[test]
fn a_bad_value_of_a_kubelets_flag_is_refused_by_the_flags_name() {
    for (flag, value, code, word) in [
        ("--image-gc-high-threshold", "101", 1, "101 must be between 0 and 100, inclusive"),
        ("--image-gc-high-threshold", "most", 2, "most"),
        ("--image-gc-low-threshold", "-1", 1, "-1 must be between 0 and 100, inclusive"),
        ("--image-gc-low-threshold", "85", 1, "85 must be less than imageGCHighThresholdPercent"),
        ("--minimum-image-ttl-duration", "5", 2, "missing unit in duration \"5\""),
        ("--minimum-image-ttl-duration", "-5m", 1, "imageMinimumGCAge -5m0s must not be negative"),
        ("--maximum-image-ttl-duration", "1m", 1, "imageMaximumGCAge 1m0s must be greater than imageMinimumGCAge 2m0s"),
        ("--serialize-image-pulls", "perhaps", 2, "perhaps"),
        ("--registry-qps", "-1", 1, "registryPullQPS (--registry-qps) -1 must not be a negative number"),
        ("--registry-burst", "-1", 1, "registryBurst (--registry-burst) -1 must not be a negative number"),
        ("--max-parallel-image-pulls", "0", 1, "maxParallelImagePulls 0 must be a positive number"),
    ] {
        for command in [&["config", "show"][..], &["serve"]] {
            let outcome = run(program().args(command).arg(format!("{flag}={value}")));
            assert_eq!(outcome.code, code, "{flag}={value}: {}", outcome.stderr);
            let told = format!("`{flag}={value}` is refused with:\n{}", outcome.stderr);
            assert!(outcome.stderr.contains(flag) && outcome.stderr.contains(word), "{told}");
            assert_eq!(outcome.stdout, "", "{told}");
        }
    }
}
