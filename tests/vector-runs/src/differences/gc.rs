//! Collection and inventory.

use serde_json::{Map, Value, json};

use super::{BOTH, COMPATIBILITY, Difference, SHIPPED, texts};
use crate::VectorCase;

pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        about: "thresholds that meet, where rounding leaves nothing to free",
        kubelet: "one image is removed",
        imagelet: "no image is removed",
        reason: "a removal must free space that is wanted",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["gc-thresholds.json", "gc-free-space.json"],
        expect: nothing_wanted,
    },
    Difference {
        about: "a goal in bytes that all candidates together cannot reach",
        kubelet: "every candidate is removed",
        imagelet: "no image is removed",
        reason: "removed images would be pulled again without any gain",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["gc-free-space.json"],
        expect: out_of_reach,
    },
    Difference {
        about: "which images are removed where space is wanted",
        kubelet: "the longest unused, until enough is freed",
        imagelet: "those with the least expected cost of removal for the bytes they free, and none beyond the need",
        reason: "fewer images are pulled again; a removal that is not tried cannot fail",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["gc-free-space.json"],
        expect: by_cost,
    },
    Difference {
        about: "the error of a collection for space whose removals failed",
        kubelet: "prints plain numbers of bytes",
        imagelet: "prints sizes with units",
        reason: "a person reads it",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["gc-free-space.json", "gc-garbage-collect.json"],
        expect: sizes_with_units,
    },
    Difference {
        about: "what the records of pulls are pruned by",
        kubelet: "the images that a space phase examined and kept; nothing after a failure",
        imagelet: "the images that are present after a collection",
        reason: "an image that stays keeps its record, so that it is not open to all",
        ways: SHIPPED,
        setting: "none; `GcReport::hook` of the library has the kubelet's list",
        files: &["gc-free-space.json"],
        expect: present_remain,
    },
    Difference {
        about: "when the records of pulls are pruned",
        kubelet: "after a space phase without a failure",
        imagelet: "after every collection that can list the images",
        reason: "records of images that were removed for their age or by other programs are pruned as well",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["gc-garbage-collect.json"],
        expect: hooks_always,
    },
    Difference {
        about: "a threshold that is out of reach",
        kubelet: "each run removes every candidate and fails; none reports what holds the space",
        imagelet: "images idle for an hour are removed, and from 95 % in use on as many more as bring the disk below that; one event names what holds the space; the run does not fail",
        reason: "an image that was just used is pulled again soon; the disk is full, but the run has not failed",
        ways: SHIPPED,
        setting: "`gc.outOfReachIdle`, `gc.critical`; `compatibility`",
        files: &["gc-garbage-collect.json"],
        expect: shortfall_reported,
    },
    Difference {
        about: "the age of an image that was never used",
        kubelet: "is infinite, seconds after its pull",
        imagelet: "counts from the first detection of the image",
        reason: "a fresh image waits for its container",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["gc-max-age.json"],
        expect: age_from_sight,
    },
    Difference {
        about: "an image that several runtime handlers have",
        kubelet: "a use under one handler protects that one alone; with its gate off, there is one record for all",
        imagelet: "a record for each; a use under any handler protects all",
        reason: "a runtime may remove all that has one id",
        ways: BOTH,
        setting: "none",
        files: &["gc-eviction-order.json", "gc-detect.json"],
        expect: handlers_share_uses,
    },
    Difference {
        about: "images that are mounted as volumes",
        kubelet: "are in use where its gate is on and no handler is in the key",
        imagelet: "are in use",
        reason: "a volume's image must not be removed below a container",
        ways: BOTH,
        setting: "none",
        files: &["gc-detect.json"],
        expect: mounts_are_uses,
    },
    Difference {
        about: "the mounts of a container",
        kubelet: "are read in each pass, and a failure ends the pass",
        imagelet: "are read once in the container's life",
        reason: "they are fixed when a container is created",
        ways: BOTH,
        setting: "none",
        files: &["gc-detect.json"],
        expect: mounts_are_asked_once,
    },
    Difference {
        about: "an image that is removed and pulled again",
        kubelet: "was never used",
        imagelet: "keeps its last use",
        reason: "an image that is pulled again is not new",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["gc-detect.json"],
        expect: uses_are_remembered,
    },
];

fn wanted(case: &VectorCase) -> i64 {
    case.input["bytes_to_free"].as_i64().unwrap_or_default()
}

fn nothing_wanted(case: &mut VectorCase) {
    if case.expected["amount_to_free"].as_i64().is_some_and(|amount| amount <= 0) {
        case.expected.as_object_mut().expect("an object").remove("amount_to_free");
        case.expected["triggered"] = false.into();
    }
    if case.input.get("bytes_to_free").is_some() && wanted(case) <= 0 {
        nothing_goes(case);
    }
}

fn nothing_goes(case: &mut VectorCase) {
    (case.expected["deleted"], case.expected["freed"]) = (json!([]), 0.into());
}

fn out_of_reach(case: &mut VectorCase) {
    let is_all = wanted(case) == i64::MAX;
    if !is_all && case.expected["error"].is_null() && case.expected["freed"].as_i64() < Some(wanted(case)) {
        nothing_goes(case);
    }
}

fn by_cost(case: &mut VectorCase) {
    let (deleted, freed, error) = match case.name.as_str() {
        "never used goes first and may overshoot" => ("image-0", 1024, None),
        "zero-size images do not stop the walk" => ("c", 5, None),
        "one failure: later deletions still happen, error reported" => ("b", 20, None),
        // Without it the goal is unreachable.
        "two different failures" => ("", 0, Some("e2")),
        _ => return,
    };
    let wanted = wanted(case);
    let error = error.map(|error| {
        format!("wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: {error}")
    });
    let deleted: Vec<&str> = [deleted].into_iter().filter(|id| !id.is_empty()).collect();
    let remaining = case.expected["remaining"].take();
    case.expected = json!({"deleted": deleted, "freed": freed, "error": error, "remaining": remaining});
}

/// No case has as much as a kilobyte.
fn sizes_with_units(case: &mut VectorCase) {
    let Some(error) = case.expected["error"].as_str() else { return };
    let Some((wanted, rest)) = error.strip_prefix("wanted to free ").and_then(|it| it.split_once(" bytes, but freed "))
    else {
        return;
    };
    let Some((freed, errors)) = rest.split_once(" bytes space with errors in image deletion: ") else { return };
    let text = format!("{wanted}B wanted, {freed}B freed, and these removals failed: {errors}");
    case.expected["error"] = text.into();
}

fn present_remain(case: &mut VectorCase) {
    let deleted = texts(&case.expected["deleted"]);
    let candidates = case.input["candidates"].as_array().into_iter().flatten();
    let ids = candidates.filter_map(|it| it["id"].as_str()).map(str::to_owned);
    let mut present: Vec<String> = ids.filter(|id| !deleted.contains(id)).collect();
    present.sort();
    case.expected["remaining"] = json!(present);
}

fn hooks_always(case: &mut VectorCase) {
    let input = &case.input;
    let has_no_disk = input["stats"]["capacity_bytes"].as_u64() == Some(0);
    let is_blind = has_no_disk || !input["stats"]["error"].is_null() || !input["list_images_error"].is_null();
    case.expected["hooks_run"] = (!is_blind).into();
}

fn shortfall_reported(case: &mut VectorCase) {
    let none = |must_go| format!("{must_go} must go, unused images can free nothing, and none was deleted. Used:");
    let (disk, done, held) = match case.name.as_str() {
        // The images are seconds old, and the disk is nearly full.
        "not enough freed" => {
            let done = "524MB was freed by removing unused images, and 120MB more must go. Used now:";
            ("95% of 10.7GB", done.to_owned(), "9.68GB by anything but images")
        }
        "nothing to delete" => ("100% of 1kB", none("110B"), "5B by images in use, 995B by anything but images"),
        "deletion failure: no FreeDiskSpaceFailed event, no hooks" => {
            ("95% of 1kB", none("60B"), "450B by images kept by rules or too young, 500B by anything but images")
        }
        "age phase failure hides a full disk" => {
            ("100% of 1kB", none("110B"), "450B by images kept by rules or too young, 550B by anything but images")
        }
        _ => return,
    };
    let message = format!(
        "Insufficient free disk space on the node's image filesystem ({disk} used). {done} {held}. Sizes are as the \
         runtime claims."
    );
    if case.expected["error"].as_str().is_some_and(|error| error.starts_with("Insufficient free disk space")) {
        case.expected["error"] = Value::Null;
    }
    case.expected["events"] = json!([format!("Warning FreeDiskSpaceFailed {message}")]);
}

fn age_from_sight(case: &mut VectorCase) {
    let number = |value: &Value| value.as_i64().unwrap_or(i64::MIN);
    let (now, age_max) = (number(&case.input["free_time"]), number(&case.input["max_age"]));
    let candidates = case.input["candidates"].as_array().into_iter().flatten();
    let is_never_used_and_young = |it: &&Value| {
        it["last_used"].is_null() && now.saturating_sub(number(&it["first_detected"])) <= age_max && age_max > 0
    };
    let young: Vec<&str> = candidates.filter(is_never_used_and_young).filter_map(|it| it["id"].as_str()).collect();
    if young.is_empty() {
        return;
    }
    let (mut deleted, mut left) = (texts(&case.expected["deleted"]), texts(&case.expected["remaining"]));
    deleted.retain(|id| !young.contains(&id.as_str()));
    left.extend(young.into_iter().map(str::to_owned));
    left.sort();
    left.dedup();
    // What is not attempted cannot fail.
    case.expected = json!({"deleted": deleted, "remaining": left, "error": null});
}

fn handlers_share_uses(case: &mut VectorCase) {
    if case.name == "handler keys: only the used tuple is protected" {
        case.expected["order"] = json!([]);
    }
    let has_gate = case.input["gate_runtime_handler_in_image_api"] == true;
    each_pass(case, |pass, expected| {
        let images = || pass["images"].as_array().into_iter().flatten();
        if !has_gate && images().any(|image| image["runtime_handler"].is_string()) {
            expected["in_use"] = json!([]);
            expected["records"] =
                images().map(|image| listed(image, &pass["detect_time"])).collect::<Map<_, _>>().into();
        }
        for container in containers(pass) {
            let handler = container["runtime_handler"].as_str().unwrap_or_default();
            used(expected, container["image_id"].as_str().unwrap_or_default(), handler, &pass["now"]);
        }
    });
}

fn listed(image: &Value, detect_time: &Value) -> (String, Value) {
    let text = |field: &str| image[field].as_str().unwrap_or_default();
    let record = json!({
        "first_detected": detect_time, "last_used": null, "runtime_handler": text("runtime_handler"),
        "size": image["size"], "pinned": image["pinned"] == true,
    });
    (key(text("id"), text("runtime_handler")), record)
}

fn key(id: &str, handler: &str) -> String {
    if handler.is_empty() { id.to_owned() } else { format!("{id},{handler}") }
}

fn mounts_are_uses(case: &mut VectorCase) {
    each_pass(case, |pass, expected| {
        for mounted in containers(pass).flat_map(|container| texts(&container["image_mounts"])) {
            let is_listed = ids(&expected["records"]).any(|(_, id)| id == mounted);
            let is_listed_bare = !expected["records"][&mounted].is_null();
            if is_listed {
                used(expected, &mounted, "", &pass["now"]);
            }
            if !is_listed_bare && let Some(in_use) = expected["in_use"].as_array_mut() {
                in_use.retain(|used| *used != *mounted);
            }
        }
    });
}

fn mounts_are_asked_once(case: &mut VectorCase) {
    if case.name == "container status failure aborts and leaves records untouched" {
        let record = |first: u64, last: Option<u64>| json!({"first_detected": first, "last_used": last, "runtime_handler": "", "size": 1, "pinned": false});
        case.expected["after_each_pass"][1] = json!({
            "error": null, "in_use": ["image-0"],
            "records": {"image-0": record(10, Some(21)), "image-1": record(20, None)},
        });
    }
}

fn uses_are_remembered(case: &mut VectorCase) {
    if case.name == "image that disappears and comes back is new again" {
        case.expected["after_each_pass"][2]["records"]["image-0"]["last_used"] = 11.into();
    }
}

fn each_pass(case: &mut VectorCase, expect: impl Fn(&Value, &mut Value)) {
    let expected = case.expected.get_mut("after_each_pass").and_then(Value::as_array_mut).into_iter().flatten();
    for (pass, expected) in case.input["passes"].as_array().into_iter().flatten().zip(expected) {
        // A failed pass changes nothing.
        if expected["error"].is_null() {
            expect(pass, expected);
        }
    }
}

fn containers(pass: &Value) -> impl Iterator<Item = &Value> {
    let pods = pass["pods"].as_array().into_iter().flatten();
    pods.flat_map(|pod| pod["containers"].as_array().into_iter().flatten())
}

fn ids(records: &Value) -> impl Iterator<Item = (String, String)> {
    let keys = records.as_object().into_iter().flat_map(|records| records.keys().cloned());
    keys.map(|key| (key.clone(), key.split(',').next().unwrap_or_default().to_owned()))
}

/// A use of an id under a handler: of that image, and of all recorded images with the id.
fn used(expected: &mut Value, id: &str, handler: &str, now: &Value) {
    let mut in_use = texts(&expected["in_use"]);
    in_use.push(key(id, handler));
    let of_id: Vec<String> = ids(&expected["records"]).filter(|(_, it)| it == id).map(|(key, _)| key).collect();
    for key in of_id {
        expected["records"][&key]["last_used"] = now.clone();
        in_use.push(key);
    }
    in_use.sort();
    in_use.dedup();
    expected["in_use"] = json!(in_use);
}
