//! Every vector of the walk: results, events, calls to the runtime and the records, start-up recorder, metric labels.

use serde_json::json;

use super::*;
use crate::events::Event;

/// Where the fault of a vector is no text of ours to choose, this text stands for the vector's own.
struct Fault {
    in_vector: &'static str,
    here: String,
}

/// Keeps events, and how many intents were on record as each was told.
#[derive(Debug)]
struct Watching {
    records: Arc<PullRecords>,
    told: Mutex<Vec<(Event, usize)>>,
}

impl EventSink for Watching {
    fn record(&self, event: Event) {
        let intents = self.records.counts().0;
        self.told.lock().expect("no test panics here").push((event, intents));
    }
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<&'static str>>);

impl PullRecorder for Recorder {
    fn pull_started(&self, pod_uid: &str) {
        assert_eq!(pod_uid, "bar");
        self.0.lock().expect("no test panics here").push("started");
    }

    fn pull_finished(&self, pod_uid: &str) {
        assert_eq!(pod_uid, "bar");
        self.0.lock().expect("no test panics here").push("finished");
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
async fn every_ensure_vector_holds() {
    let cases = vectors("pull-ensure-image.json");
    for case in &cases {
        let name = case["name"].as_str().expect("a name");
        let (input, expected) = (&case["input"], &case["expected"]);
        let bed = Bed::new(input, name.ends_with("verification needed"));
        let steps = expected["steps"].as_array().expect("steps");
        assert_eq!(Some(steps.len() as u64), input["calls"].as_u64());
        for (index, step) in steps.iter().enumerate() {
            advance(milliseconds(&input["clock_step_before_each_call_ms"])).await;
            bed.step_holds(step, &format!("{name}, step {index}")).await;
        }
    }
    assert_eq!(cases.len(), 42);
}

impl Bed {
    fn new(input: &Value, needs_verification: bool) -> Self {
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
        let records = match (input["feature_ensure_secret_pulled_images"].as_bool(), must_pull) {
            (Some(true), _) if !input["record_intent_error"].is_null() => {
                let records = PullRecords::open(disk.path(), VerificationPolicy::NeverVerify).expect("it opens");
                fault = Some(break_intents(disk.path()));
                records
            }
            (Some(true), true) => PullRecords::in_memory_with(VerificationPolicy::AlwaysVerify),
            (Some(true), false) => PullRecords::in_memory_with(VerificationPolicy::NeverVerify),
            _ => PullRecords::off(),
        };
        if must_pull {
            // Somebody else's image, so that the asker's own credentials are looked at.
            let theirs =
                RecordedSecret { uid: "other".into(), credential_hash: "other".into(), ..RecordedSecret::default() };
            let access = ImageAccess { kubernetes_secrets: vec![theirs], ..ImageAccess::default() };
            let id = ImageId::new(default_tag(image).expect("these names are good"));
            records.learn(image, &id, &access, SystemTime::now()).expect("memory does not fail");
        }
        if judge_error.is_some() {
            // The records fail with what the asker's lookup fails with, and with nothing else.
            secrets.push(secret("s", r#"{"auths": {"reg.io": {"auth": "pants"}}}"#));
            fault =
                Some(Fault { in_vector: "some credential error", here: "illegal base64 data at input byte 4".into() });
        }
        let records = Arc::new(records);
        let events = Arc::new(Watching { records: Arc::clone(&records), told: Mutex::default() });
        let (recorder, metrics) = (Arc::new(Recorder::default()), Arc::new(Metrics::new()));
        let parts = ManagerParts {
            runtime: RuntimeManager::new(Arc::clone(&store) as Arc<dyn ImageService>, Arc::new(NoContainers)),
            settings: settings(input),
            keyring: Arc::new(NodeKeyring::fixed(Keyring::new())),
            providers: Arc::new(NoProviders),
            records: Arc::clone(&records),
            events: Arc::clone(&events) as Arc<dyn EventSink>,
            metrics: Arc::clone(&metrics),
            touched: None,
            recorder: Some(Arc::clone(&recorder) as Arc<dyn PullRecorder>),
        };
        let pod = PodIdentity { uid: input["pod_uid"].as_str().expect("a uid").into(), ..PodIdentity::default() };
        let policy = PullPolicy::as_written(input["pull_policy"].as_str().expect("a policy"));
        let request = EnsureRequest { pod, secrets, ..EnsureRequest::new(image, policy) };
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

    async fn step_holds(&self, step: &Value, place: &str) {
        self.store.lock().calls.clear();
        self.recorder.0.lock().expect("no test panics here").clear();
        self.events.told.lock().expect("no test panics here").clear();
        let labels = &step["metric_labels"];
        let labels: Vec<String> = ["present_locally", "pull_policy", "pull_required"]
            .iter()
            .map(|label| text(&labels[label]).expect("a label"))
            .collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let counted = self.metrics.value(&meters::REQUESTS, &labels);
        let checked = self.checks();

        let ended = match self.manager.ensure(&self.request, no_progress()).await {
            Ok(ensured) => json!({"image_ref": ensured.id.as_str(), "message": ensured.message, "reason": null}),
            Err(error) => json!({"image_ref": "", "message": error.message(), "reason": error.reason()}),
        };
        for part in ["image_ref", "message", "reason"] {
            assert_eq!(ended[part], self.expected(&step[part]), "{place}: {part}");
        }
        let told = std::mem::take(&mut *self.events.told.lock().expect("no test panics here"));
        let events: Vec<Value> = told
            .iter()
            .map(|(event, _)| json!({"type": event.kind.name(), "reason": event.reason, "message": event.message}))
            .collect();
        assert_eq!(Value::from(events), step["events"], "{place}");
        let calls: Vec<&str> =
            texts(&step["cri_calls"]).iter().map(|call| if call == "PullImage" { "pull" } else { "status" }).collect();
        assert_eq!(self.store.lock().calls, calls, "{place}");
        assert_eq!(texts(&step["startup_recorder"]), *self.recorder.0.lock().unwrap(), "{place}");
        assert!((self.metrics.value(&meters::REQUESTS, &labels) - counted - 1.0).abs() < 0.1, "{place}: {labels:?}");
        self.records_were_asked(step, self.checks() - checked, &told, place);
    }

    /// What the records were asked shows in what they hold, when.
    fn records_were_asked(&self, step: &Value, checks: f64, told: &[(Event, usize)], place: &str) {
        let calls = texts(&step["pull_manager_calls"]);
        let names: Vec<&str> = calls.iter().filter_map(|call| call.split('(').next()).collect();
        let judged = if names.contains(&"MustAttemptImagePull") { 1.0 } else { 0.0 };
        assert!((checks - judged).abs() < 0.1, "{place}: {checks} checks");
        let id = step["image_ref"].as_str().map(ImageId::new);
        for name in &names {
            match *name {
                "MustAttemptImagePull" => {}
                "RecordPullIntent" if names.len() == 1 => assert!(self.fault.is_some(), "{place}: none takes it back"),
                "RecordPullIntent" => {
                    let before = told.iter().find(|(event, _)| matches!(event.reason, "Pulling" | "BackOff"));
                    assert_eq!(before.map(|(_, intents)| *intents), Some(1), "{place}: it is on record by then");
                }
                "RecordImagePullFailed" => assert_eq!(self.records.counts().0, 0, "{place}: it is taken back"),
                "RecordImagePulled" => {
                    assert_eq!(self.records.counts().0, 0, "{place}: the record stands in its place");
                    assert!(self.records.record(id.as_ref().expect("an id")).is_some(), "{place}");
                }
                other => panic!("{place}: {other}"),
            }
        }
        if !names.contains(&"RecordPullIntent") {
            assert!(told.iter().all(|(_, intents)| *intents == 0), "{place}: nothing was put on record");
        }
        if let Some(recorded) = step.get("recorded_credentials").filter(|recorded| !recorded.is_null()) {
            let record = self.records.record(id.as_ref().expect("an id")).expect("it was recorded");
            let access = record.mapping.values().next().expect("for this image");
            assert_eq!(serde_json::to_value(access).expect("it encodes"), *recorded, "{place}");
        }
    }

    fn checks(&self) -> f64 {
        let results = ["credentialPolicyAllowed", "credentialRecordFound", "mustAuthenticate", "error"];
        results.iter().map(|result| self.metrics.value(&meters::CHECKS, &[result])).sum()
    }

    fn expected(&self, text: &Value) -> Value {
        match (&self.fault, text.as_str()) {
            (Some(fault), Some(text)) => Value::from(text.replace(fault.in_vector, &fault.here)),
            _ => text.clone(),
        }
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

fn settings(input: &Value) -> PullSettings {
    let number = |name: &str| u32::try_from(input[name].as_u64().unwrap_or_default()).expect("a small number");
    let rate = NonZeroU32::new(number("registry_pull_qps"))
        .map(|qps| PullRate { qps: qps.get() as f32, burst: number("registry_burst") });
    PullSettings {
        rate,
        backoff_first: milliseconds(&input["backoff_initial_ms"]),
        backoff_max: milliseconds(&input["backoff_max_ms"]),
        compatibility: Compatibility::Kubelet,
        ..Wanted::default().settings
    }
}
