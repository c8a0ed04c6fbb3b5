//! Every vector of the walk: results, events, calls to the runtime and the records, start-up recorder, metric labels.

use super::*;
use crate::{events::Event, records::RecordsSettings};

/// Where the fault of a vector is no text of ours to choose, the vector's own stands for this text in what is found.
struct Fault {
    in_vector: &'static str,
    here: String,
}

/// Keeps events, and the number of intents at each.
#[derive(Debug)]
struct Watching {
    records: Arc<PullRecords>,
    reported: Mutex<Vec<(Event, usize)>>,
}

impl EventSink for Watching {
    fn record(&self, event: Event) {
        let intents = self.records.counts().0;
        self.reported.lock().expect("no test panics here").push((event, intents));
    }
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<&'static str>>);

impl PullRecorder for Recorder {
    fn pull_started(&self, pod: &PodIdentity) {
        assert_eq!(&*pod.uid, "bar");
        self.0.lock().expect("no test panics here").push("started");
    }

    fn image_finished(&self, pod: &PodIdentity, end: ImageEnd) {
        assert_eq!(&*pod.uid, "bar");
        // The kubelet's is not called at the end of a pull that failed.
        if end != ImageEnd::Failed {
            self.0.lock().expect("no test panics here").push("finished");
        }
    }
}

/// One vector's node.
struct Bed {
    store: Arc<Scripted>,
    manager: ImageManager,
    records: Arc<PullRecords>,
    events: Arc<Watching>,
    recorder: Arc<Recorder>,
    metrics: Arc<Metrics>,
    request: EnsureRequest,
    fault: Option<Fault>,
    /// Holds the broken folder of records.
    _disk: tempfile::TempDir,
}

#[tokio::test(start_paused = true)]
async fn every_ensure_vector_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("pull-ensure-image.json", way);
        while let Some(case) = run.next_case() {
            let input = &case.input;
            let is_recorded = |step: &Value| step.get("recorded_credentials").is_some();
            let steps = case.expected["steps"].as_array().expect("steps");
            assert_eq!(Some(steps.len() as u64), input["calls"].as_u64());
            let bed = Bed::new(input, is_judged(&case), way);
            let mut found = Vec::new();
            for step in steps {
                advance(milliseconds(&input["clock_step_before_each_call_ms"])).await;
                let mut ended = bed.step().await;
                if !is_recorded(step) {
                    ended.as_object_mut().expect("an object").remove("recorded_credentials");
                }
                found.push(ended);
            }
            run.compare(&case, &json!({"steps": found}));
        }
        run.end();
    }
}

#[tokio::test(start_paused = true)]
async fn every_decision_vector_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("pull-policy-decision.json", way);
        while let Some(case) = run.next_case() {
            let mut input = json!({
                "image": "app", "images_present": [], "pod_uid": "bar", "backoff_initial_ms": 1000, "backoff_max_ms": 60_000,
            });
            if case.input["present"] == true {
                input["images_present"] = json!(["app:latest"]);
            }
            for field in ["pull_policy", "feature_ensure_secret_pulled_images", "must_attempt_pull"] {
                input[field] = case.input[field].clone();
            }
            let step = Bed::new(&input, false, way).step().await;
            let (cri, asked) = (texts(&step["cri_calls"]), texts(&step["pull_manager_calls"]));
            let action = match step["reason"].as_str() {
                Some(reason) => reason,
                None if cri.iter().any(|call| call == "PullImage") => "pull",
                None => "use_present",
            };
            let found = json!({
                "action": action,
                "image_status_called": cri.iter().any(|call| call == "GetImageRef"),
                "pull_manager_consulted": asked.iter().any(|call| call.starts_with("MustAttemptImagePull(")),
                "metric": step["metric_labels"],
            });
            run.compare(&case, &found);
        }
        run.end();
    }
}

/// Whether the vector's stub of the records looked at the client's credentials, without more being said of its answer:
/// they cannot be read, and that it was asked is expected.
fn is_judged(case: &VectorCase) -> bool {
    let secrets = secrets_of(&case.input["pull_secrets"]);
    let is_broken = |secret: &PullSecret| serde_json::from_str::<Value>(secret.document.expose()).is_err();
    let asks =
        |step: &Value| texts(&step["pull_manager_calls"]).iter().any(|call| call.starts_with("MustAttemptImagePull("));
    secrets.iter().any(is_broken) && case.expected["steps"].as_array().expect("steps").iter().any(asks)
}

impl Bed {
    fn new(input: &Value, needs_verification: bool, way: Way) -> Self {
        let store = Arc::new(Scripted::default());
        {
            let mut script = store.lock();
            script.present = texts(&input["images_present"]);
            script.size = input["image_size"].as_u64().unwrap_or_default();
            script.inspect_error = text(&input["cri_inspect_error"]);
            script.pull_error = text(&input["cri_pull_error"]);
        }
        let image = input["image"].as_str().expect("an image");
        let mut secrets = secrets_of(&input["pull_secrets"]);
        let mut fault = None;
        let disk = tempfile::tempdir().expect("a directory for the test");
        let judge_error = input["must_attempt_error"].as_str();
        let must_pull =
            input["must_attempt_pull"].as_bool() == Some(true) || needs_verification || judge_error.is_some();
        let settled = |policy| RecordsSettings { guard: way.guard(), ..RecordsSettings::new(policy) };
        let records = match (input["feature_ensure_secret_pulled_images"].as_bool(), must_pull) {
            (Some(true), _) if !input["record_intent_error"].is_null() => {
                let records =
                    PullRecords::open(disk.path(), settled(VerificationPolicy::NeverVerify)).expect("it opens");
                fault = Some(break_intents(disk.path()));
                records
            }
            (Some(true), true) => PullRecords::in_memory_with(settled(VerificationPolicy::AlwaysVerify)),
            (Some(true), false) => PullRecords::in_memory_with(settled(VerificationPolicy::NeverVerify)),
            _ => PullRecords::off(),
        };
        if must_pull {
            // The image of another client, so that the client's own credentials are looked at.
            let theirs =
                RecordedSecret { uid: "other".into(), credential_hash: "other".into(), ..RecordedSecret::default() };
            let access = ImageAccess { kubernetes_secrets: vec![theirs], ..ImageAccess::default() };
            let id = ImageId::new(default_tag(image).expect("these names are good"));
            records.learn(image, &id, &access, SystemTime::now()).expect("memory does not fail");
        }
        if judge_error.is_some() {
            // The records fail with what the client's lookup fails with, and with nothing else.
            secrets.push(secret("s", r#"{"auths": {"reg.io": {"auth": "pants"}}}"#));
            fault =
                Some(Fault { in_vector: "some credential error", here: "illegal base64 data at input byte 4".into() });
        }
        let records = Arc::new(records);
        let events = Arc::new(Watching { records: Arc::clone(&records), reported: Mutex::default() });
        let (recorder, metrics) = (Arc::new(Recorder::default()), Arc::new(Metrics::new()));
        let runtime = RuntimeManager::new(Arc::clone(&store) as Arc<dyn ImageService>, Arc::new(NoContainers));
        let parts = ManagerParts {
            settings: settings(input, way),
            reports: ManagerReports {
                events: Arc::clone(&events) as Arc<dyn EventSink>,
                metrics: Arc::clone(&metrics),
                recorder: Some(Arc::clone(&recorder) as Arc<dyn PullRecorder>),
                ..ManagerReports::default()
            },
            ..ManagerParts::new(runtime, Arc::clone(&records))
        };
        let pod = PodIdentity { uid: input["pod_uid"].as_str().expect("a uid").into(), ..PodIdentity::default() };
        let policy = PullPolicy::as_written(input["pull_policy"].as_str().expect("a policy"));
        let mut request = EnsureRequest { secrets, ..EnsureRequest::new(image, policy) };
        request.pull.pod = pod;
        Self {
            store,
            manager: ImageManager::new(parts),
            records,
            events,
            recorder,
            metrics,
            request,
            fault,
            _disk: disk,
        }
    }

    /// One call, and all that is seen of it.
    async fn step(&self) -> Value {
        self.store.lock().calls.clear();
        self.recorder.0.lock().expect("no test panics here").clear();
        self.events.reported.lock().expect("no test panics here").clear();
        let (counted, checked) = (self.counted(), self.checks());
        let result = self.manager.ensure(&self.request, unwatched()).await;
        let reported = std::mem::take(&mut *self.events.reported.lock().expect("no test panics here"));
        let event = |(event, _): &(Event, usize)| {
            let message = self.in_vector(&event.message);
            json!({"type": event.kind.name(), "reason": event.reason, "message": message})
        };
        let (image_ref, message, reason) = match &result {
            Ok(ensured) => (ensured.id.to_string(), ensured.message.clone(), None),
            Err(error) => (String::new(), error.message(), Some(self.in_vector(&error.reason()))),
        };
        json!({
            "image_ref": image_ref, "message": self.in_vector(&message), "reason": reason,
            "events": reported.iter().map(event).collect::<Value>(),
            "cri_calls": self.cri_calls(),
            "pull_manager_calls": self.records_calls(&result, self.checks() - checked, &reported),
            "startup_recorder": *self.recorder.0.lock().expect("no test panics here"),
            "metric_labels": self.labels_since(&counted),
            "recorded_credentials": result.ok().and_then(|ensured| self.recorded_for(&ensured.id)),
        })
    }

    /// By the names of the kubelet's calls: the status behind a pull is asked for its size.
    fn cri_calls(&self) -> Vec<&'static str> {
        let calls = self.store.lock().calls.clone();
        let pulled = calls.iter().position(|call| *call == "pull").unwrap_or(calls.len());
        let name = |(place, call): (usize, &&'static str)| match *call {
            "pull" => "PullImage",
            _ if place < pulled => "GetImageRef",
            _ => "GetImageSize",
        };
        calls.iter().enumerate().map(name).collect()
    }

    /// What the records were asked, as what they hold shows it and when.
    fn records_calls(
        &self,
        result: &Result<Ensured, EnsureError>,
        checks: f64,
        reported: &[(Event, usize)],
    ) -> Vec<String> {
        let image = self.request.image();
        let id = default_tag(image).unwrap_or_default();
        let mut calls = Vec::new();
        if checks > 0.5 {
            calls.push(format!("MustAttemptImagePull({image},{id})"));
        }
        let was_begun = reported.iter().any(|(_, intents)| *intents > 0);
        if was_begun || result.as_ref().is_err_and(|error| error.class() == ErrorClass::RecordFailed) {
            calls.push(format!("RecordPullIntent({image})"));
        }
        if was_begun {
            assert_eq!(self.records.counts().0, 0, "{image}: the intent does not outlive the call");
            let is_recorded = result.is_ok() && self.records.record(&ImageId::new(&id)).is_some();
            calls.push(if is_recorded {
                format!("RecordImagePulled({image},{id})")
            } else {
                format!("RecordImagePullFailed({image})")
            });
        }
        calls
    }

    fn recorded_for(&self, id: &ImageId) -> Option<Value> {
        let record = self.records.record(id)?;
        let access = record.mapping.values().next().expect("for this image");
        Some(serde_json::to_value(access).expect("it encodes"))
    }

    fn checks(&self) -> f64 {
        let results = ["credentialPolicyAllowed", "credentialRecordFound", "mustAuthenticate", "error"];
        results.iter().map(|result| self.metrics.value(&meters::CHECKS, &[result])).sum()
    }

    /// How often each set of labels was counted: present locally, pull policy, pull required.
    fn counted(&self) -> Vec<([&'static str; 3], f64)> {
        let answers = ["true", "false", "unknown"];
        let policies = ["always", "ifnotpresent", "never", "unknown", ""];
        let sets = answers.into_iter().flat_map(|present| {
            policies.into_iter().flat_map(move |policy| answers.map(move |required| [present, policy, required]))
        });
        sets.map(|labels| (labels, self.metrics.value(&meters::REQUESTS, &labels))).collect()
    }

    /// The labels of the one request that was counted since.
    fn labels_since(&self, before: &[([&'static str; 3], f64)]) -> Value {
        let now = self.counted();
        let more = now.iter().zip(before).filter(|((_, now), (_, before))| now - before > 0.5);
        let more: Vec<&[&str; 3]> = more.map(|((labels, _), _)| labels).collect();
        assert_eq!(more.len(), 1, "one request is counted: {more:?}");
        let [present, policy, required] = more[0];
        json!({"present_locally": present, "pull_policy": policy, "pull_required": required})
    }

    fn in_vector(&self, text: &str) -> String {
        self.fault.as_ref().map_or_else(|| text.to_owned(), |fault| text.replace(&fault.here, fault.in_vector))
    }
}

/// Puts a file where the folder of intents is, so that none can be written.
fn break_intents(root: &std::path::Path) -> Fault {
    let pulling = root.join("image_manager/pulling");
    std::fs::remove_dir(&pulling).expect("it is empty");
    std::fs::write(&pulling, "").expect("a file takes its place");
    let refused = std::fs::create_dir(&pulling).expect_err("a file stands there");
    Fault { in_vector: "disk full", here: refused.to_string() }
}

fn settings(input: &Value, way: Way) -> PullSettings {
    let number = |name: &str| u32::try_from(input[name].as_u64().unwrap_or_default()).expect("a small number");
    let rate = NonZeroU32::new(number("registry_pull_qps"))
        .map(|qps| PullRate { qps: qps.get() as f32, burst: number("registry_burst") });
    PullSettings {
        rate,
        backoff_first: milliseconds(&input["backoff_initial_ms"]),
        backoff_max: milliseconds(&input["backoff_max_ms"]),
        ..way.pull_settings()
    }
}
