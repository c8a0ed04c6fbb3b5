//! The only caller of the runtime ports. Builds pods from the responses (`docs/spec/gc.md §11`).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::SystemTime,
};

use tokio::time::Instant;

use super::{
    Container, ContainerService, ImageDetails, ImageFilesystems, ImageService, LayerGraph, LayerSource, Listing,
    LocalStore, Progress, PullEstimate, PullRequest, RegistryHost, RemovableNames, Sandbox, SandboxImage, UsableImages,
    removal,
};
use crate::error::RuntimeError;
use crate::{
    image::{Image, ImageId, ImageSpec, PinnedNames, Reference},
    metrics::{MetricKind, Metrics, families},
};

const LABEL_POD_UID: &str = "io.kubernetes.pod.uid";
const LABEL_POD_NAME: &str = "io.kubernetes.pod.name";
const LABEL_POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";

families! {
    TOTAL = "kubelet_runtime_operations_total", "Cumulative number of runtime operations by operation type.",
        MetricKind::Counter, &["operation_type"];
    ERRORS = "kubelet_runtime_operations_errors_total",
        "Cumulative number of runtime operation errors by operation type.",
        MetricKind::Counter, &["operation_type"];
    SECONDS = "kubelet_runtime_operations_duration_seconds",
        "Duration in seconds of runtime operations. Broken down by operation type.",
        // 0.005, then thirteen times the factor 2.5.
        MetricKind::Histogram(&[
            0.005, 0.0125, 0.031_25, 0.078_125, 0.195_312_5, 0.488_281_25, 1.220_703_125, 3.051_757_812_5,
            7.629_394_531_25, 19.073_486_328_125, 47.683_715_820_312_5, 119.209_289_550_781_25,
            298.023_223_876_953_1, 745.058_059_692_382_8,
        ]),
        &["operation_type"];
}

#[derive(Clone, Debug)]
pub struct RuntimeManager {
    pub images: Arc<dyn ImageService>,
    pub containers: Arc<dyn ContainerService>,
    pub metrics: Option<Arc<Metrics>>,
    /// Names of pinned images, in addition to the names that the store pins.
    pub pinned: Arc<PinnedNames>,
    /// Another interface of the runtime for layer graph and artifacts. `None`: the image store reports both.
    pub layers: Option<Arc<dyn LayerSource>>,
    /// Checks whether a listed image has its layers. `None`: the image store lists only such images.
    pub usable: Option<UsableImages>,
    /// Makes the names of an image removable. `None`: the image store can remove any name.
    pub names: Option<Arc<dyn RemovableNames>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Identifies the pod; empty for containers without a pod.
    pub uid: String,
    pub name: String,
    pub namespace: String,
    /// The creation time of the newest sandbox; without a sandbox, of the first container.
    pub created_at: SystemTime,
    /// The containers, in any state. An empty image id is filled from the reference.
    pub containers: Vec<Container>,
    /// The sandboxes: the highest attempt first, then the newest.
    pub sandboxes: Vec<Sandbox>,
}

impl RuntimeManager {
    pub fn new(images: Arc<dyn ImageService>, containers: Arc<dyn ContainerService>) -> Self {
        Self { images, containers, metrics: None, pinned: Arc::default(), layers: None, usable: None, names: None }
    }

    #[must_use]
    pub fn measured(self, metrics: Arc<Metrics>) -> Self {
        for &family in FAMILIES {
            metrics.declare(family);
        }
        Self { metrics: Some(metrics), ..self }
    }

    pub async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        let mut listed = self.counted("list_images", self.images.list(filter)).await?;
        let artifacts = match &self.layers {
            Some(source) => source.artifacts(&listed.iter().map(|image| &image.id).collect::<Vec<_>>()).await,
            None => HashMap::new(),
        };
        if self.pinned.is_empty() && artifacts.is_empty() {
            return Ok(listed);
        }
        for image in Arc::make_mut(&mut listed) {
            if self.pinned.marks(image) {
                Arc::make_mut(image).pinned = true;
            }
            if let Some(artifact) = artifacts.get(&image.id) {
                Arc::make_mut(image).artifact = Some(Arc::clone(artifact));
            }
        }
        Ok(listed)
    }

    /// Finds one image from which containers can start. An image without its layers is treated as absent.
    pub async fn usable(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        Ok(match self.status(spec).await? {
            Some(found) => self.is_usable(&found.id).await.then_some(found),
            None => None,
        })
    }

    pub async fn usable_details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        Ok(match self.details(spec).await? {
            Some(found) => self.is_usable(&found.image.id).await.then_some(found),
            None => None,
        })
    }

    /// Whether containers can start from a listed image. Returns true in doubt.
    pub async fn is_usable(&self, image: &ImageId) -> bool {
        match &self.usable {
            Some(usable) => usable.is_usable(image).await,
            None => true,
        }
    }

    /// Finds one image, even if its layers are missing; see [`ImageService::status`].
    pub async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        let mut image = self.counted("image_status", self.images.status(spec)).await?;
        if let Some(image) = &mut image {
            self.pinned.mark(image);
        }
        Ok(image)
    }

    pub async fn details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        let mut details = self.counted("image_status", self.images.details(spec)).await?;
        if let Some(details) = &mut details {
            self.pinned.mark(&mut details.image);
        }
        Ok(details)
    }

    pub async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError> {
        self.counted("pull_image", self.images.pull(request, progress)).await
    }

    pub(crate) async fn registry_hosts(&self, image: &Reference) -> Vec<RegistryHost> {
        self.images.registry_hosts(image).await
    }

    pub fn local(&self) -> Option<&dyn LocalStore> {
        self.images.local()
    }

    pub async fn estimate(&self, request: &PullRequest) -> Result<Option<PullEstimate>, RuntimeError> {
        match self.images.local() {
            Some(store) => store.estimate(request).await,
            None => Ok(None),
        }
    }

    pub async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        self.counted("remove_image", self.images.remove(spec)).await
    }

    /// Replaces the names that would survive the image's removal. The replacement may take long, so the caller checks
    /// afterwards whether the image may still be removed. Fails with `Remains` if a name prevents the removal.
    pub(crate) async fn prepare_removal(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        match &self.names {
            Some(names) => removal::prepare(&*self.images, &**names, spec).await,
            None => Ok(()),
        }
    }

    /// Removes a prepared image with all its names. Fails with `Remains` if the image is still present.
    pub(crate) async fn remove_and_look(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        self.remove(spec).await?;
        removal::check(&*self.images, spec).await
    }

    pub async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        self.counted("image_fs_info", self.images.filesystem()).await
    }

    pub async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        if let Some(source) = &self.layers
            && let Some(graph) = source.layers().await?
        {
            return Ok(Some(graph));
        }
        match self.images.local() {
            Some(store) => store.layers().await,
            None => Ok(None),
        }
    }

    pub async fn mounted_images(&self, container_id: &str) -> Result<Vec<String>, RuntimeError> {
        self.counted("container_status", self.containers.mounted_images(container_id)).await
    }

    pub(crate) async fn is_container_gone(&self, container_id: &str) -> Result<bool, RuntimeError> {
        self.counted("container_status", self.containers.is_gone(container_id)).await
    }

    pub async fn sandbox_image(&self, sandbox_id: &str) -> Result<SandboxImage, RuntimeError> {
        self.counted("podsandbox_status", self.containers.sandbox_image(sandbox_id)).await
    }

    pub async fn default_sandbox_images(&self) -> Result<Vec<String>, RuntimeError> {
        self.counted("status", self.containers.default_sandbox_images()).await
    }

    /// Counts and measures a finished operation, as the kubelet does (`docs/spec/pull.md §9.1`). A cancelled operation
    /// is not counted.
    async fn counted<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        let Some(metrics) = &self.metrics else { return work.await };
        let (began, labels) = (Instant::now(), &[operation]);
        let result = work.await;
        metrics.increment(&TOTAL, labels);
        metrics.observe(&SECONDS, labels, began.elapsed().as_secs_f64());
        if result.is_err() {
            metrics.increment(&ERRORS, labels);
        }
        result
    }

    /// All pods with all their containers and sandboxes, in any state. The newest pod is first.
    pub async fn pods(&self) -> Result<Vec<Pod>, RuntimeError> {
        let sandboxes = self.counted("list_podsandbox", self.containers.sandboxes()).await?;
        let containers = self.counted("list_containers", self.containers.containers()).await?;
        Ok(assemble(sandboxes, containers))
    }
}

/// Groups sandboxes and containers by pod uid. The uid comes from the labels of a container, else from its sandbox.
fn assemble(mut sandboxes: Vec<Sandbox>, containers: Vec<Container>) -> Vec<Pod> {
    let newest_first = |a: &Sandbox, b: &Sandbox| {
        b.attempt.cmp(&a.attempt).then_with(|| b.created_at.cmp(&a.created_at)).then_with(|| a.id.cmp(&b.id))
    };
    sandboxes.sort_by(newest_first);
    let mut uid_of_sandbox: HashMap<String, String> = HashMap::new();
    let mut pods: BTreeMap<String, Pod> = BTreeMap::new();
    let empty = |uid: &str, name: String, namespace: String, created_at| Pod {
        uid: uid.to_owned(),
        name,
        namespace,
        created_at,
        containers: Vec::new(),
        sandboxes: Vec::new(),
    };
    for sandbox in sandboxes {
        uid_of_sandbox.insert(sandbox.id.clone(), sandbox.uid.clone());
        let of_pod = || empty(&sandbox.uid, sandbox.name.clone(), sandbox.namespace.clone(), sandbox.created_at);
        pods.entry(sandbox.uid.clone()).or_insert_with(of_pod).sandboxes.push(sandbox);
    }
    for mut container in containers {
        if container.id.is_empty() || container.image.names().iter().all(|name| name.is_empty()) {
            tracing::debug!(container = %container.name, "skipping a container without id or image");
            continue;
        }
        let image = &mut container.image;
        if image.id.is_empty() {
            image.id.clone_from(&image.reference);
        }
        let label = |name: &str| container.labels.get(name).cloned();
        let uid =
            label(LABEL_POD_UID).or_else(|| uid_of_sandbox.get(&container.sandbox_id).cloned()).unwrap_or_default();
        let text = |name: &str| label(name).unwrap_or_default();
        let of_pod = || empty(&uid, text(LABEL_POD_NAME), text(LABEL_POD_NAMESPACE), container.created_at);
        pods.entry(uid.clone()).or_insert_with(of_pod).containers.push(container);
    }
    let mut pods: Vec<Pod> = pods.into_values().collect();
    pods.sort_by_key(|pod| Reverse(pod.created_at));
    pods
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::image::{Artifact, Digest};
    use crate::{
        ports::{ContainerImage, ContainerState},
        testing::FakeRuntime,
    };

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn sandbox(id: &str, uid: &str, created: u64) -> Sandbox {
        Sandbox {
            id: id.to_owned(),
            name: format!("pod-{uid}"),
            namespace: "default".to_owned(),
            uid: uid.to_owned(),
            attempt: 0,
            ready: true,
            created_at: at(created),
            runtime_handler: String::new(),
        }
    }

    fn container(id: &str, sandbox_id: &str) -> Container {
        Container {
            id: id.to_owned(),
            sandbox_id: sandbox_id.to_owned(),
            name: id.to_owned(),
            image: ContainerImage { spec: ImageSpec::new("app"), reference: "sha256:r".to_owned(), id: String::new() },
            state: ContainerState::Exited,
            created_at: at(1),
            labels: BTreeMap::new(),
        }
    }

    #[tokio::test]
    async fn what_is_asked_of_containers_is_counted_as_the_kubelet_counts_it() {
        let (fake, metrics) = (crate::testing::FakeRuntime::new(), Arc::new(Metrics::new()));
        let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake)).measured(Arc::clone(&metrics));
        runtime.pods().await.unwrap();
        runtime.mounted_images("c").await.unwrap();
        runtime.is_container_gone("c").await.unwrap();
        runtime.sandbox_image("s").await.unwrap();
        runtime.default_sandbox_images().await.unwrap();
        for (operation, count) in [
            ("list_podsandbox", 1),
            ("list_containers", 1),
            ("container_status", 2),
            ("podsandbox_status", 1),
            ("status", 1),
        ] {
            let line = format!("kubelet_runtime_operations_total{{operation_type=\"{operation}\"}} {count}");
            assert!(metrics.render().lines().any(|found| found == line), "{line}");
        }
    }

    #[derive(Debug)]
    struct Artifacts(HashMap<ImageId, Arc<Artifact>>);

    #[async_trait::async_trait]
    impl LayerSource for Artifacts {
        async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
            Ok(None)
        }

        async fn artifacts(&self, listed: &[&ImageId]) -> HashMap<ImageId, Arc<Artifact>> {
            let found = listed.iter().filter_map(|id| self.0.get_key_value(*id));
            found.map(|(id, artifact)| (id.clone(), Arc::clone(artifact))).collect()
        }
    }

    #[tokio::test]
    async fn a_list_of_a_runtime_says_which_images_are_artifacts() {
        let fake = crate::testing::FakeRuntime::new();
        let (model, app) = (fake.preload("model:1", "model", 1), fake.preload("app:1", "app", 1));
        let artifact = Artifact { kind: "a/model".to_owned(), manifest: Digest::of(b"manifest"), files: 1 };
        let artifacts = HashMap::from([(model.clone(), Arc::new(artifact.clone()))]);
        let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake));
        let runtime = RuntimeManager { layers: Some(Arc::new(Artifacts(artifacts))), ..runtime };
        let listed = runtime.list(None).await.unwrap();
        let of = |id: &ImageId| listed.iter().find(|image| image.id == *id).unwrap().artifact.as_deref().cloned();
        assert_eq!((of(&model), of(&app)), (Some(artifact), None));
    }

    #[test]
    fn pods_come_newest_first() {
        let pods = assemble(vec![sandbox("a", "1", 10), sandbox("b", "2", 5), sandbox("c", "3", 20)], Vec::new());
        assert_eq!(pods.iter().map(|pod| pod.uid.as_str()).collect::<Vec<_>>(), ["3", "1", "2"]);
    }

    #[test]
    fn the_last_attempt_comes_first_then_the_newest_then_the_id() {
        let again = |id: &str, attempt: u32, created: u64| Sandbox { attempt, ..sandbox(id, "1", created) };
        let pods = assemble(vec![again("d", 0, 9), again("c", 1, 5), again("b", 2, 5), again("a", 2, 5)], Vec::new());
        let order: Vec<_> = pods[0].sandboxes.iter().map(|sandbox| sandbox.id.as_str()).collect();
        assert_eq!((pods.len(), order), (1, vec!["a", "b", "c", "d"]));
        assert_eq!(pods[0].created_at, at(5), "the pod is as old as the sandbox seen first");
    }

    #[test]
    fn a_container_finds_its_pod_by_label_then_by_sandbox_and_else_makes_one() {
        let mut labelled = container("x", "elsewhere");
        labelled.labels.insert(LABEL_POD_UID.to_owned(), "1".to_owned());
        let mut orphan = container("z", "gone");
        orphan.labels.insert(LABEL_POD_UID.to_owned(), "9".to_owned());
        orphan.labels.insert(LABEL_POD_NAME.to_owned(), "old".to_owned());
        let pods = assemble(vec![sandbox("a", "1", 10)], vec![labelled, container("y", "a"), orphan]);
        assert_eq!(pods[0].containers.len(), 2);
        assert_eq!((pods[1].uid.as_str(), pods[1].name.as_str()), ("9", "old"));
    }

    #[test]
    fn the_image_id_falls_back_to_the_reference_the_runtime_resolved() {
        let mut modern = container("y", "a");
        modern.image.id = "sha256:c".to_owned();
        let pods = assemble(vec![sandbox("a", "1", 1)], vec![container("x", "a"), modern]);
        let ids: Vec<_> = pods[0].containers.iter().map(|container| container.image.id.as_str()).collect();
        assert_eq!(ids, ["sha256:r", "sha256:c"]);
    }

    #[test]
    fn containers_without_id_or_image_are_skipped() {
        let mut imageless = container("x", "a");
        imageless.image = ContainerImage::default();
        let pods = assemble(vec![sandbox("a", "1", 1)], vec![container("", "a"), imageless]);
        assert!(pods[0].containers.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn operations_are_counted_by_what_they_are_and_how_they_end() {
        let (runtime, metrics) = (Arc::new(FakeRuntime::default()), Arc::new(Metrics::new()));
        let runtime = RuntimeManager::new(Arc::clone(&runtime) as _, runtime).measured(Arc::clone(&metrics));
        let work = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(())
        };
        runtime.counted("pull_image", work).await.expect("it is well");
        let failed = async { Err::<(), _>(RuntimeError::other("no")) };
        runtime.counted("image_status", failed).await.expect_err("it is not");
        let text = metrics.render();
        for line in [
            "kubelet_runtime_operations_total{operation_type=\"pull_image\"} 1",
            "kubelet_runtime_operations_total{operation_type=\"image_status\"} 1",
            "kubelet_runtime_operations_errors_total{operation_type=\"image_status\"} 1",
            "kubelet_runtime_operations_duration_seconds_sum{operation_type=\"pull_image\"} 2",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"pull_image\",le=\"745.0580596923828\"} 1",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"pull_image\",le=\"1.220703125\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("errors_total{operation_type=\"pull_image\"}"));
    }
}
