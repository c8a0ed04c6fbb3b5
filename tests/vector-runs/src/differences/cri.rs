//! The Container Runtime Interface: what runtimes and clients do otherwise.

use serde_json::json;

use super::{BOTH, Difference};
use crate::VectorCase;

pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        about: "a pull for an unknown runtime handler",
        kubelet: "containerd: uses the default store",
        imagelet: "is refused",
        reason: "CRI requires it; the container could not use an image in another store",
        ways: BOTH,
        setting: "none",
        files: &["cri-pinning-and-handler.json"],
        expect: unknown_handler,
    },
    Difference {
        about: "a pattern of pinned images without a star at its beginning",
        kubelet: "CRI-O: may begin anywhere in a name",
        imagelet: "begins where the name begins",
        reason: "a pattern is read as it is written",
        ways: BOTH,
        setting: "none",
        files: &["cri-pinning-and-handler.json"],
        expect: anchored_pattern,
    },
    Difference {
        about: "a pattern of pinned images that is a star alone",
        kubelet: "CRI-O: ends the process",
        imagelet: "is refused",
        reason: "no image could be removed any more",
        ways: BOTH,
        setting: "none",
        files: &["cri-pinning-and-handler.json"],
        expect: lone_star,
    },
    Difference {
        about: "an empty image id",
        kubelet: "containerd: names the only image; of several it is ambiguous",
        imagelet: "names no image",
        reason: "an empty text names nothing",
        ways: BOTH,
        setting: "none",
        files: &["cri-truncated-id.json"],
        expect: empty_id,
    },
    Difference {
        about: "an endpoint that is a relative path",
        kubelet: "is dialled without its first part",
        imagelet: "is refused",
        reason: "another socket would answer",
        ways: BOTH,
        setting: "none",
        files: &["cri-endpoint-parse.json"],
        expect: relative_endpoint,
    },
    Difference {
        about: "a list of images in a stream",
        kubelet: "containerd: 5000 images in a message",
        imagelet: "1000, and no more than 1 MiB",
        reason: "a message stays far below the clients' limit",
        ways: BOTH,
        setting: "none",
        files: &["cri-list-streaming.json"],
        expect: smaller_messages,
    },
];

fn unknown_handler(case: &mut VectorCase) {
    let Some(handler) = case.input["runtime_handler"].as_str() else { return };
    if !handler.is_empty() && case.input["by_handler"].get(handler).is_none() {
        case.expected = json!({"snapshotter": null});
    }
}

fn anchored_pattern(case: &mut VectorCase) {
    let (Some(pattern), Some(name)) = (case.input["pattern"].as_str(), case.input["reference"].as_str()) else {
        return;
    };
    let beginning = pattern.strip_suffix('*').filter(|beginning| !beginning.is_empty() && !beginning.starts_with('*'));
    if beginning.is_some_and(|beginning| !name.starts_with(beginning)) {
        case.expected = json!({"pinned": false});
    }
}

fn lone_star(case: &mut VectorCase) {
    if case.expected["panics"] == true {
        case.expected = json!({"refused": true});
    }
}

fn empty_id(case: &mut VectorCase) {
    if case.input["query"] == "" {
        case.expected = json!({"error": true, "error_kind": "empty"});
    }
}

fn relative_endpoint(case: &mut VectorCase) {
    let text = case.input["endpoint"].as_str().unwrap_or_default();
    let is_dialled = case.input["function"] == "address_and_dialer" && case.input["os"] == "unix";
    if is_dialled && !text.contains("://") && !text.starts_with('/') {
        case.expected = json!({"error": true, "error_kind": "relative"});
    }
}

fn smaller_messages(case: &mut VectorCase) {
    const IMAGES_MAX: u64 = 1000;
    let (Some(messages), Some(count)) = (case.expected.get_mut("messages"), case.input["image_count"].as_u64()) else {
        return;
    };
    let rest = (count % IMAGES_MAX != 0).then_some(count % IMAGES_MAX);
    let whole = usize::try_from(count / IMAGES_MAX).expect("a vector is small");
    *messages = std::iter::repeat_n(IMAGES_MAX, whole).chain(rest).collect();
}
