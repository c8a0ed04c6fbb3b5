//! Rolls other arguments out to the pods of a DaemonSet, and waits until each of them has run with these.
//!
//! The installation of a cluster takes its hosts back by this before it is removed.

use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    api_client::{ApiClient, encoded},
    api_error::ApiError,
};

const READ_EVERY: Duration = Duration::from_secs(2);
/// For how long failed requests are repeated: a right that was granted just now may need seconds to hold.
const FAILURES_MAX: Duration = Duration::from_mins(1);

/// The pods of a DaemonSet and their arguments.
#[derive(Debug)]
pub struct DaemonSetRollout {
    client: ApiClient,
    path: String,
}

/// How far a rollout is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolloutProgress {
    /// Nodes that have a pod.
    pub nodes: u64,
    /// Nodes whose pod is ready with the new arguments.
    pub done: u64,
}

#[derive(Debug, Deserialize)]
struct DaemonSet {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    #[serde(default)]
    generation: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    observed_generation: i64,
    desired_number_scheduled: u64,
    updated_number_scheduled: u64,
    number_available: u64,
}

impl DaemonSetRollout {
    /// The DaemonSet of this name.
    pub fn new(client: ApiClient, namespace: &str, name: &str) -> Self {
        let path = format!("/apis/apps/v1/namespaces/{}/daemonsets/{}", encoded(namespace), encoded(name));
        Self { client, path }
    }

    /// Gives the init container of this name these arguments. Returns false for an absent DaemonSet, and one without such a
    /// container.
    ///
    /// # Errors
    /// When the API server rejects that or cannot be reached for a minute.
    pub async fn set_arguments(&self, container: &str, arguments: &[String]) -> Result<bool, ApiError> {
        let began = Instant::now();
        loop {
            match self.try_set_arguments(container, arguments).await {
                Err(ApiError::Rejected { code: 404, .. }) => return Ok(false),
                // Written by another client meanwhile, or away.
                Err(error) if began.elapsed() > FAILURES_MAX => return Err(error),
                Err(_) => tokio::time::sleep(READ_EVERY).await,
                Ok(is_set) => return Ok(is_set),
            }
        }
    }

    async fn try_set_arguments(&self, container: &str, arguments: &[String]) -> Result<bool, ApiError> {
        let mut object = self.client.get::<Value>(&self.path).await?;
        let containers = object.pointer_mut("/spec/template/spec/initContainers").and_then(Value::as_array_mut);
        let found = containers.into_iter().flatten().find(|one| one["name"] == container);
        let Some(found) = found else { return Ok(false) };
        found["args"] = arguments.into();
        allow_for_absent(&mut object);
        // It names the version that was read, so that no write of another client is undone.
        self.client.send::<Value>(Method::PUT, &self.path, &object).await.map(|_| true)
    }

    /// Waits until the pod of each node is ready with the arguments that were set last. `report` gets each progress once.
    ///
    /// # Errors
    /// When the API server rejects the request or cannot be reached for a minute.
    pub async fn wait(&self, mut report: impl FnMut(RolloutProgress)) -> Result<(), ApiError> {
        let (mut answered, mut reported) = (Instant::now(), None);
        loop {
            match self.client.get::<DaemonSet>(&self.path).await {
                Ok(DaemonSet { metadata, status }) if status.observed_generation >= metadata.generation => {
                    answered = Instant::now();
                    let done = status.updated_number_scheduled.min(status.number_available);
                    let progress = RolloutProgress { nodes: status.desired_number_scheduled, done };
                    if reported.replace(progress) != Some(progress) {
                        report(progress);
                    }
                    if progress.done >= progress.nodes {
                        return Ok(());
                    }
                }
                Ok(_) => answered = Instant::now(),
                Err(error) if answered.elapsed() > FAILURES_MAX => return Err(error),
                Err(_) => {}
            }
            tokio::time::sleep(READ_EVERY).await;
        }
    }
}

/// Raises the number of pods that change at once by those that are unavailable: the nodes that are off would otherwise hold up
/// all others.
fn allow_for_absent(object: &mut Value) {
    let number = |path: &str| object.pointer(path).and_then(Value::as_u64).unwrap_or_default();
    let (nodes, absent) = (number("/status/desiredNumberScheduled"), number("/status/numberUnavailable"));
    let Some(limit) = object.pointer_mut("/spec/updateStrategy/rollingUpdate/maxUnavailable") else { return };
    let share = limit.as_str().and_then(|text| text.strip_suffix('%')?.parse::<u64>().ok());
    let at_once = share.map(|percent| (nodes.saturating_mul(percent)).div_ceil(100)).or(limit.as_u64());
    if let Some(at_once) = at_once.filter(|_| absent > 0) {
        *limit = (at_once + absent).into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{ApiFault, FakeApi, FakeApiOptions};

    const COLLECTION: &str = "/apis/apps/v1/daemonsets";

    async fn api() -> (FakeApi, DaemonSetRollout) {
        let fake = FakeApi::start(FakeApiOptions::default()).await;
        fake.install("/apis/apps/v1");
        let client = ApiClient::connected(fake.client());
        (fake, DaemonSetRollout::new(client, "kube-system", "imagelet-node"))
    }

    fn daemon_set() -> Value {
        json!({
            "metadata": {"namespace": "kube-system", "name": "imagelet-node"},
            "spec": {"template": {"spec": {
                "initContainers": [{"name": "install", "image": "i", "args": ["pod", "install"]}],
                "containers": [{"name": "wait", "args": ["pod", "wait"]}],
            }}},
        })
    }

    fn stored(fake: &FakeApi) -> Value {
        fake.object(COLLECTION, "kube-system", "imagelet-node").unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_arguments_of_one_container_change_and_the_rest_stays() {
        let (fake, rollout) = api().await;
        let arguments = ["pod".to_owned(), "install".into(), "--uninstall".into()];
        assert!(!rollout.set_arguments("install", &arguments).await.unwrap(), "it is absent");
        fake.put(COLLECTION, daemon_set());
        assert!(!rollout.set_arguments("other", &arguments).await.unwrap());
        fake.plant(ApiFault::Status(403, "not yet".into()));
        assert!(rollout.set_arguments("install", &arguments).await.unwrap());
        let mut expected = daemon_set();
        expected["spec"]["template"]["spec"]["initContainers"][0]["args"] = json!(arguments);
        assert_eq!(stored(&fake)["spec"], expected["spec"]);
        fake.plant_lasting(Some(ApiFault::Status(403, "never".into())));
        let error = rollout.set_arguments("install", &arguments).await.unwrap_err();
        assert!(error.to_string().contains("403: never"), "{error}");
    }

    #[test]
    fn nodes_that_are_off_take_no_place_of_those_that_change_at_once() {
        for (limit, nodes, absent, expected) in [
            (json!("10%"), 2, 0, json!("10%")),
            (json!("10%"), 2, 1, json!(2)),
            (json!("10%"), 100, 30, json!(40)),
            (json!(3), 100, 2, json!(5)),
            (json!("all"), 100, 2, json!("all")),
        ] {
            let mut object = daemon_set();
            object["spec"]["updateStrategy"] = json!({"rollingUpdate": {"maxUnavailable": limit}});
            object["status"] = json!({"desiredNumberScheduled": nodes, "numberUnavailable": absent});
            allow_for_absent(&mut object);
            assert_eq!(object["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"], expected, "{limit}");
        }
        let mut object = daemon_set();
        allow_for_absent(&mut object);
        assert_eq!(object, daemon_set());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rollout_ends_when_each_node_has_a_ready_pod_of_the_last_generation() {
        let (fake, rollout) = api().await;
        let mut object = daemon_set();
        let status = |generation: i64, updated: u64, available: u64| {
            json!({"observedGeneration": generation, "desiredNumberScheduled": 3,
                "updatedNumberScheduled": updated, "numberAvailable": available})
        };
        let mut put = |generation: i64, updated, available| {
            object["metadata"]["generation"] = 2.into();
            object["status"] = status(generation, updated, available);
            fake.put(COLLECTION, object.clone());
        };
        put(1, 3, 3); // Of the former arguments.
        let mut seen = Vec::new();
        let mut waiting = Box::pin(rollout.wait(|progress| seen.push((progress.done, progress.nodes))));
        for (generation, updated, available) in [(1, 3, 3), (2, 1, 2), (2, 1, 2), (2, 3, 2)] {
            put(generation, updated, available);
            tokio::select! {
                ended = &mut waiting => panic!("{ended:?} at {updated}, {available}"),
                () = tokio::time::sleep(Duration::from_secs(5)) => {}
            }
        }
        fake.plant(ApiFault::Status(503, "away".into()));
        put(2, 3, 3);
        waiting.await.unwrap();
        assert_eq!(seen, [(1, 3), (2, 3), (3, 3)]);

        fake.plant_lasting(Some(ApiFault::Status(401, "who".into())));
        rollout.wait(|_| {}).await.unwrap_err();
    }
}
