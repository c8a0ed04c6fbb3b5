//! Pulls and their records.

use serde_json::{Value, json};

use super::{BOTH, COMPATIBILITY, Difference, SHIPPED, texts};
use crate::VectorCase;

pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        about: "class of a failed pull",
        kubelet: "the text begins with the letters of `RegistryUnavailable` or `SignatureValidationFailed`",
        imagelet: "it begins with that whole word",
        reason: "another word that begins alike is another failure",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["pull-error-classification.json"],
        expect: whole_word,
    },
    Difference {
        about: "a pull secret that cannot be read",
        kubelet: "no pull; Go's text is waiting reason and message",
        imagelet: "the secret is skipped, and the others are tried",
        reason: "one broken secret must not keep a pod from a public image",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["pull-with-secrets.json", "pull-ensure-image.json"],
        expect: secret_passed_over,
    },
    Difference {
        about: "a failed presence check",
        kubelet: "the message quotes an empty name",
        imagelet: "the message names the image",
        reason: "the reader needs the name",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["pull-ensure-image.json"],
        expect: inspected_by_name,
    },
    Difference {
        about: "the intent of an image in back-off",
        kubelet: "its intent is written, then removed",
        imagelet: "no intent is written",
        reason: "no pull starts, so nothing is written",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["pull-ensure-image.json"],
        expect: no_intent_while_held_back,
    },
    Difference {
        about: "a pull that cannot be recorded",
        kubelet: "the raw error text is the waiting reason, without event",
        imagelet: "the reason is `ErrImagePull`, with an event `Failed`",
        reason: "reasons are a fixed set, and `kubectl describe` shows the failure",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["pull-ensure-image.json"],
        expect: unrecorded_pull_fails,
    },
    Difference {
        about: "a pull that started and has no record",
        kubelet: "guards the spelling of its request",
        imagelet: "guards the image under all its names, its digest and its id",
        reason: "otherwise the image is open to all under any other name, after a crash for good",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["pull-records-lifecycle.json", "pull-records-must-attempt.json"],
        expect: guarded_by_image,
    },
    Difference {
        about: "records of images that stay when a collection runs",
        kubelet: "are lost where the image was in use, pinned or not examined; it is then open to all",
        imagelet: "are kept",
        reason: "a full disk must give no pod access to an image",
        ways: BOTH,
        setting: "none",
        files: &["pull-records-gc-interplay.json"],
        expect: records_stay,
    },
    Difference {
        about: "the list that a collection passes to hooks",
        kubelet: "the images it examined and kept",
        imagelet: "is not made",
        reason: "records are pruned by the images that are present",
        ways: SHIPPED,
        setting: COMPATIBILITY,
        files: &["pull-records-gc-interplay.json"],
        expect: no_hook,
    },
    Difference {
        about: "callers of a serial puller",
        kubelet: "ten wait in a queue, others block before it",
        imagelet: "all wait in one queue, in sight",
        reason: "`imagelet status` shows each with its place",
        ways: BOTH,
        setting: "none",
        files: &["pull-scheduling.json"],
        expect: one_queue,
    },
];

fn whole_word(case: &mut VectorCase) {
    if case.input["cri_error"] == "RegistryUnavailableX" {
        case.expected = json!({"reason": "ErrImagePull", "message": case.input["cri_error"]});
    }
}

fn secret_passed_over(case: &mut VectorCase) {
    let secrets = case.input.get("secrets").or(case.input.get("pull_secrets"));
    let secrets = secrets.and_then(Value::as_array).into_iter().flatten();
    let mut documents = secrets.filter_map(|secret| secret["data"].as_object()?.values().next()?.as_str());
    let is_broken = documents.any(|document| serde_json::from_str::<Value>(document).is_err());
    if is_broken && case.expected.get("pull_attempts").is_some() {
        case.expected = json!({"auth_of_first_attempt": null, "ok": true, "pull_attempts": 1});
        return;
    }
    let is_broken = is_broken || !case.input["must_attempt_error"].is_null();
    let image = image(case);
    for step in steps(case).filter(|step| is_broken && !step["reason"].is_null()) {
        // The pull continues as without secrets, so that the registry has to verify access.
        let id = format!("{image}:latest");
        let (calls, asked) = (texts(&step["cri_calls"]), texts(&step["pull_manager_calls"]));
        let events = [
            format!("Pulling image \"{image}\""),
            format!("Successfully pulled image \"{image}\" in 0s (0s including waiting). Image size: 0 bytes."),
        ];
        let [pulling, pulled] = events;
        step["cri_calls"] = json!([calls, texts(&json!(["PullImage", "GetImageSize"]))].concat());
        let recorded = [format!("RecordPullIntent({image})"), format!("RecordImagePulled({image},{id})")];
        step["pull_manager_calls"] = json!([&asked[..], &recorded[..]].concat());
        step["events"] = json!([
            {"type": "Normal", "reason": "Pulling", "message": pulling},
            {"type": "Normal", "reason": "Pulled", "message": pulled},
        ]);
        step["startup_recorder"] = json!(["started", "finished"]);
        step["metric_labels"]["pull_required"] = "true".into();
        (step["image_ref"], step["message"], step["reason"]) = (id.into(), "".into(), Value::Null);
    }
}

fn image(case: &VectorCase) -> String {
    case.input["image"].as_str().unwrap_or_default().to_owned()
}

fn steps(case: &mut VectorCase) -> impl Iterator<Item = &mut Value> {
    case.expected.get_mut("steps").and_then(Value::as_array_mut).into_iter().flatten()
}

fn inspected_by_name(case: &mut VectorCase) {
    let named = format!("inspect image \"{}\":", image(case));
    for step in steps(case).filter(|step| step["reason"] == "ImageInspectError") {
        let message: Value = step["message"].as_str().unwrap_or_default().replace("inspect image \"\":", &named).into();
        (step["message"], step["events"][0]["message"]) = (message.clone(), message);
    }
}

fn no_intent_while_held_back(case: &mut VectorCase) {
    for step in steps(case).filter(|step| step["reason"] == "ImagePullBackOff") {
        let mut calls = texts(&step["pull_manager_calls"]);
        calls.retain(|call| !call.starts_with("RecordPullIntent") && !call.starts_with("RecordImagePullFailed"));
        step["pull_manager_calls"] = json!(calls);
    }
}

fn unrecorded_pull_fails(case: &mut VectorCase) {
    let (image, is_broken) = (image(case), !case.input["record_intent_error"].is_null());
    for step in steps(case).filter(|_| is_broken) {
        let message = format!(
            "Failed to record image pull intent for container image \"{image}\": could not write the pull record of \
             `{image}`: disk full"
        );
        step["events"] = json!([{"type": "Warning", "reason": "Failed", "message": message}]);
        (step["message"], step["reason"]) = (message.into(), "ErrImagePull".into());
    }
}

fn guarded_by_image(case: &mut VectorCase) {
    match case.name.as_str() {
        "intent under another spelling of the same image is not found" => {
            case.expected["must_pull"] = true.into();
            case.expected["metric_result"] = "mustAuthenticate".into();
        }
        "startup: untagged intent is not matched to :latest RepoTag"
        | "startup: short-name intent is not matched to the fully qualified RepoTag"
        | "startup: tag+digest intent is not matched" => {
            case.expected["intents_left"] = json!([]);
            case.expected["record_image_refs"] = json!(["sha256:1"]);
            let afterwards = "must_pull_afterwards_policy_NeverVerifyPreloadedImages_no_credentials";
            for asked in case.expected[afterwards].as_array_mut().into_iter().flatten() {
                asked["must_pull"] = true.into();
            }
        }
        _ => {}
    }
}

fn records_stay(case: &mut VectorCase) {
    if case.expected["hook_called"] == true {
        let left = match case.input["op"].as_str() {
            Some("collect") => json!(["in-use", "old1", "old2", "pinned"]),
            _ => json!(["in-use", "pinned"]),
        };
        case.expected["records_left"] = left;
        case.expected["pod_without_credentials_must_pull_in_use_image_after"] = true.into();
    }
}

fn no_hook(case: &mut VectorCase) {
    if case.expected["hook_called"] == true {
        (case.expected["hook_called"], case.expected["hook_list"]) = (false.into(), Value::Null);
    }
}

fn one_queue(case: &mut VectorCase) {
    let blocked = case.expected["callers_blocked_on_submit"].as_u64();
    if let (Some(queued), Some(blocked)) = (case.expected["queued"].as_u64(), blocked) {
        case.expected["queued"] = (queued + blocked).into();
        case.expected["callers_blocked_on_submit"] = 0.into();
    }
}
