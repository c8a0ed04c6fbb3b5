//! A runtime in memory: a registry, a store, containers, and a log of the received calls.

use std::{
    collections::{BTreeMap, HashMap},
    ops::{Deref, DerefMut},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

use crate::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{ByteSize, Digest, Image, ImageId, ImageNames, ImageSpec, ImageUser, Reference, default_tag, look_up},
    ports::{
        Certainty, Container, ContainerImage, ContainerService, ContainerState, FilesystemUsage, Freed, ImageDetails,
        ImageFilesystems, ImageService, JsonText, LayerFacts, LayerGraph, LayerState, Listing, LocalStore, Progress,
        PullEstimate, PullEvent, PullRequest, Sandbox, SandboxImage,
    },
};

/// Cheap to clone. Clones share all state.
#[derive(Clone, Debug, Default)]
pub struct FakeRuntime {
    state: Arc<Mutex<FakeState>>,
}

#[derive(Debug, Default)]
struct StoredImages {
    images: BTreeMap<ImageId, Arc<Image>>,
    listing: Option<Listing>,
}

impl StoredImages {
    fn listing(&mut self) -> Listing {
        self.listing.get_or_insert_with(|| self.images.values().cloned().collect()).clone()
    }
}

impl Deref for StoredImages {
    type Target = BTreeMap<ImageId, Arc<Image>>;

    fn deref(&self) -> &Self::Target {
        &self.images
    }
}

/// A mutable borrow invalidates the cached list.
impl DerefMut for StoredImages {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.listing = None;
        &mut self.images
    }
}

#[derive(Debug, Default)]
struct FakeState {
    registry: BTreeMap<String, Offer>,
    images: StoredImages,
    containers: Vec<Container>,
    sandboxes: Vec<Sandbox>,
    volumes: HashMap<String, Vec<String>>,
    sandbox_images: HashMap<String, String>,
    default_sandbox_images: Vec<String>,
    /// Whether missing containers are reported as removed for certain. `false`: their state is unknown.
    tells_who_is_gone: bool,
    calls: Vec<String>,
    failures: HashMap<String, (RuntimeErrorKind, String)>,
    /// Whether pulls can be estimated. `false` by default, because CRI has no estimates.
    estimates: bool,
    /// Estimates by normalised image name, which replace the estimate from the registry.
    estimated: HashMap<String, PullEstimate>,
    /// The id and size of each layer of an image. If the map is empty, the fake reports no layers.
    layers: BTreeMap<ImageId, Vec<(String, ByteSize)>>,
    /// Images that stay after a removal, without tags, and with these names by digest.
    keeps: BTreeMap<ImageId, Vec<String>>,
    /// The fake behaves as a runtime that unpacks no file of an artifact.
    unpacks_nothing: bool,
    reserved: Freed,
    pull_takes: Duration,
    pulls_running: usize,
    pulls_running_max: usize,
    requests: Vec<PullRequest>,
}

#[derive(Clone, Debug)]
struct Offer {
    id: ImageId,
    size: ByteSize,
    user: Option<String>,
    password: Option<String>,
}

impl FakeRuntime {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an image to the registry. Names with equal `content` are names of one image.
    pub fn offer(&self, name: &str, content: &str, size: u64) -> ImageId {
        self.offer_to(name, content, size, None)
    }

    /// Adds an image to the registry. With a `login`, only this user and password can pull it.
    pub fn offer_to(&self, name: &str, content: &str, size: u64, login: Option<(&str, &str)>) -> ImageId {
        let id = ImageId::new(Digest::of(content.as_bytes()).as_str());
        let offer = Offer {
            id: id.clone(),
            size: ByteSize(size),
            user: login.map(|(user, _)| user.to_owned()),
            password: login.map(|(_, password)| password.to_owned()),
        };
        self.lock().registry.insert(normal(name), offer);
        id
    }

    /// Adds an image to the store as if it had been pulled long ago.
    pub fn preload(&self, name: &str, content: &str, size: u64) -> ImageId {
        let id = self.offer(name, content, size);
        self.lock().store(&normal(name), &id, ByteSize(size));
        id
    }

    /// Adds an image to the store, unchanged.
    pub fn insert(&self, image: Image) {
        self.lock().images.insert(image.id.clone(), Arc::new(image));
    }

    /// Sets or clears the pin of the runtime.
    pub fn set_pinned(&self, id: &ImageId, pinned: bool) {
        if let Some(image) = self.lock().images.get_mut(id) {
            Arc::make_mut(image).pinned = pinned;
        }
    }

    /// Makes one call on one subject fail: `fail("pull docker.io/library/a:v1", …)`, or any subject: `fail("list", …)`.
    pub fn fail(&self, call: &str, kind: RuntimeErrorKind, message: &str) {
        self.lock().failures.insert(call.to_owned(), (kind, message.to_owned()));
    }

    pub fn heal(&self) {
        self.lock().failures.clear();
    }

    /// From now on, all configurations are those of artifacts.
    pub fn unpack_nothing(&self) {
        self.lock().unpacks_nothing = true;
    }

    /// Sets whether pulls can be estimated. An estimate has one layer with the image's size.
    pub fn set_estimates(&self, estimates: bool) {
        self.lock().estimates = estimates;
    }

    /// Sets the estimate of one image, instead of an estimate from the registry.
    pub fn set_estimate(&self, name: &str, estimate: PullEstimate) {
        let mut fake = self.lock();
        fake.estimates = true;
        fake.estimated.insert(normal(name), estimate);
    }

    /// Sets the layers of an image by name and size. Images share the layers with equal names. After the first call the
    /// fake reports layers; an image without layers then has one unique layer.
    pub fn set_layers(&self, id: &ImageId, layers: &[(&str, u64)]) {
        let layers = layers.iter().map(|(name, size)| ((*name).to_owned(), ByteSize(*size))).collect();
        self.lock().layers.insert(id.clone(), layers);
    }

    /// From now on, a removal of the image succeeds but leaves the image, without tags, and with these names by digest.
    pub fn keep_after_removal(&self, id: &ImageId, digests: &[&str]) {
        self.lock().keeps.insert(id.clone(), digests.iter().map(|name| (*name).to_owned()).collect());
    }

    /// The disk usage of all images. A shared layer is counted once.
    pub fn disk_bytes(&self) -> ByteSize {
        let fake = self.lock();
        if fake.layers.is_empty() {
            return fake.images.values().map(|image| image.size).sum();
        }
        fake.graph().layers.iter().map(|layer| layer.bytes).sum()
    }

    /// Sets the space reserved for running pulls.
    pub fn set_reserved(&self, reserved: Freed) {
        self.lock().reserved = reserved;
    }

    /// Sets the duration of each pull.
    pub fn set_pull_takes(&self, takes: Duration) {
        self.lock().pull_takes = takes;
    }

    /// Adds a container of a ready pod `default/POD` that uses an image.
    pub fn run(&self, pod: &str, name: &str, image: &str, image_id: &ImageId, state: ContainerState) -> String {
        let mut fake = self.lock();
        let sandbox_id = format!("sandbox-{pod}");
        if !fake.sandboxes.iter().any(|sandbox| sandbox.id == sandbox_id) {
            fake.sandboxes.push(Sandbox {
                id: sandbox_id.clone(),
                name: pod.to_owned(),
                namespace: "default".into(),
                uid: format!("uid-{pod}"),
                attempt: 0,
                ready: true,
                created_at: SystemTime::UNIX_EPOCH,
                runtime_handler: String::new(),
            });
        }
        let id = format!("container-{pod}-{name}");
        let labels = [
            ("io.kubernetes.pod.name", pod),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", &format!("uid-{pod}")),
            ("io.kubernetes.container.name", name),
        ];
        fake.containers.push(Container {
            id: id.clone(),
            sandbox_id,
            name: name.to_owned(),
            image: ContainerImage {
                spec: ImageSpec::new(image),
                reference: image_id.to_string(),
                id: image_id.to_string(),
            },
            state,
            created_at: SystemTime::UNIX_EPOCH,
            labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        });
        id
    }

    pub fn add_container(&self, container: Container) {
        self.lock().containers.push(container);
    }

    pub fn add_sandbox(&self, sandbox: Sandbox) {
        self.lock().sandboxes.push(sandbox);
    }

    /// Mounts an image into a container as a volume.
    pub fn mount_volume(&self, container_id: &str, image: &str) {
        self.lock().volumes.entry(container_id.to_owned()).or_default().push(image.to_owned());
    }

    pub fn set_sandbox_image(&self, sandbox_id: &str, image: &str) {
        self.lock().sandbox_images.insert(sandbox_id.to_owned(), image.to_owned());
    }

    pub fn set_default_sandbox_image(&self, image: &str) {
        self.lock().default_sandbox_images = vec![image.to_owned()];
    }

    pub fn remove_sandbox(&self, sandbox_id: &str) {
        self.lock().sandboxes.retain(|sandbox| sandbox.id != sandbox_id);
    }

    pub fn stop_all(&self) {
        let mut fake = self.lock();
        fake.containers.clear();
        fake.sandboxes.clear();
        fake.volumes.clear();
    }

    /// Reports each missing container as removed for certain, from now on.
    pub fn report_gone_containers(&self) {
        self.lock().tells_who_is_gone = true;
    }

    /// The calls since the last `take_calls`, as `VERB SUBJECT`: `list`, `containers`, `status X`, …
    pub fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().calls)
    }

    pub fn pull_requests(&self) -> Vec<PullRequest> {
        self.lock().requests.clone()
    }

    pub fn pulls_running_max(&self) -> usize {
        self.lock().pulls_running_max
    }

    pub fn pulls_running(&self) -> usize {
        self.lock().pulls_running
    }

    fn lock(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().expect("no test panics while it holds the fake")
    }

    fn enter(&self, verb: &str, subject: &str) -> Result<MutexGuard<'_, FakeState>, RuntimeError> {
        let mut fake = self.lock();
        let call = if subject.is_empty() { verb.to_owned() } else { format!("{verb} {subject}") };
        let failure = fake.failures.get(&call).or_else(|| fake.failures.get(verb)).cloned();
        fake.calls.push(call);
        match failure {
            Some((kind, message)) => Err(RuntimeError::new(kind, message)),
            None => Ok(fake),
        }
    }
}

impl FakeState {
    fn store(&mut self, name: &str, id: &ImageId, size: ByteSize) {
        let reference: Reference = name.parse().expect("normalised names parse");
        self.forget(name);
        let fresh = || Image {
            id: id.clone(),
            tags: Vec::new(),
            digests: Vec::new(),
            size,
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
            artifact: None,
        };
        let image = Arc::make_mut(self.images.entry(id.clone()).or_insert_with(|| Arc::new(fresh())));
        if reference.digest().is_none() && !image.tags.iter().any(|tag| tag == name) {
            image.tags.push(name.to_owned());
        }
        let digest = format!("{}@{}", reference.repository(), manifest(id));
        if !image.digests.contains(&digest) {
            image.digests.push(digest);
        }
    }

    /// The registry's image for the name and the credential of a request.
    fn offered(&self, request: &PullRequest) -> Result<(String, Offer), RuntimeError> {
        let name = request.image.image.parse::<Reference>().map_err(|error| {
            RuntimeError::new(RuntimeErrorKind::InvalidArgument, format!("`{}`", request.image.image))
                .caused_by(Box::new(error))
        })?;
        let name = name.canonical();
        let by_digest = || {
            let (digest, repository) = (name.digest()?, name.repository());
            let mut offers = self.registry.iter().filter(|(_, offer)| manifest(&offer.id) == *digest);
            let in_repository =
                |offered: &str| offered.parse::<Reference>().is_ok_and(|it| it.repository() == repository);
            offers.find(|(offered, _)| in_repository(offered)).map(|(_, offer)| offer.clone())
        };
        let offer = self.registry.get(&name.to_string()).cloned().or_else(by_digest);
        let name = name.to_string();
        let Some(offer) = offer else {
            return Err(RuntimeError::new(RuntimeErrorKind::NotFound, format!("`{name}` is not in the registry")));
        };
        let login = request.credential.as_ref().and_then(|credential| match &credential.kind {
            crate::credentials::CredentialKind::Basic { username, password } => {
                Some((username.clone(), password.expose().to_owned()))
            }
            _ => None,
        });
        if let (Some(user), Some(password)) = (&offer.user, &offer.password)
            && login.as_ref() != Some(&(user.clone(), password.clone()))
        {
            return Err(RuntimeError::new(RuntimeErrorKind::Denied, format!("the registry refuses `{name}`")));
        }
        Ok((name, offer))
    }

    fn graph(&self) -> LayerGraph {
        let (mut places, mut graph) =
            (HashMap::new(), LayerGraph { certainty: Certainty::Exact, ..Default::default() });
        for image in self.images.values() {
            let own = || vec![(image.id.to_string(), image.size)];
            let layers = self.layers.get(&image.id).cloned().unwrap_or_else(own);
            let place = |(id, bytes): (String, ByteSize)| {
                *places.entry(id.clone()).or_insert_with(|| {
                    graph.layers.push(LayerFacts { id: id.into(), bytes, inodes: Some(1), held: false, folder: None });
                    u32::try_from(graph.layers.len() - 1).expect("no test has so many")
                })
            };
            let parts = layers.into_iter().map(place).collect();
            graph.images.insert(image.id.clone(), parts);
        }
        graph
    }

    fn forget(&mut self, name: &str) {
        for image in self.images.values_mut().filter(|image| image.tags.iter().any(|tag| tag == name)) {
            Arc::make_mut(image).tags.retain(|tag| tag != name);
        }
    }

    fn find(&self, text: &str) -> Result<Option<&Arc<Image>>, RuntimeError> {
        let found = look_up(text, self)
            .map_err(|error| RuntimeError::new(RuntimeErrorKind::InvalidArgument, format!("`{text}`: {error}")))?;
        Ok(found.and_then(|id| self.images.get(&id)))
    }
}

impl ImageNames for FakeState {
    fn has(&self, id: &ImageId) -> bool {
        self.images.contains_key(id)
    }
    fn named(&self, name: &str) -> Option<ImageId> {
        let has = |names: &[String]| names.iter().any(|known| known == name);
        self.images.values().find(|image| has(&image.tags) || has(&image.digests)).map(|image| image.id.clone())
    }
    fn beginning(&self, prefix: &str) -> [Option<ImageId>; 2] {
        let mut found = self.images.keys().filter(|id| id.as_str().starts_with(prefix)).cloned();
        [found.next(), found.next()]
    }
}

/// The digest of the image's manifest, also used for its only layer.
fn manifest(id: &ImageId) -> Digest {
    Digest::of(id.as_str().as_bytes())
}

fn normal(name: &str) -> String {
    let name = default_tag(name).expect("tests offer names that parse");
    name.parse::<Reference>().expect("checked above").canonical().to_string()
}

struct Running<'a>(&'a FakeRuntime);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().pulls_running -= 1;
    }
}

#[async_trait]
impl ImageService for FakeRuntime {
    fn local(&self) -> Option<&dyn LocalStore> {
        Some(self)
    }

    async fn list(&self, filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        let mut fake = self.enter("list", "")?;
        match filter.filter(|spec| !spec.image.is_empty()) {
            Some(spec) => Ok(fake.find(&spec.image)?.cloned().into_iter().collect()),
            None => Ok(fake.images.listing()),
        }
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        Ok(self.enter("status", &spec.image)?.find(&spec.image)?.map(|image| Image::clone(image)))
    }

    async fn details(&self, spec: &ImageSpec) -> Result<Option<ImageDetails>, RuntimeError> {
        let fake = self.enter("status", &spec.image)?;
        let Some(image) = fake.find(&spec.image)?.map(|image| Image::clone(image)) else { return Ok(None) };
        let diff_ids = [Digest::of(image.id.as_str().as_bytes())];
        let (diff_ids, kind) = if fake.unpacks_nothing { (&[][..], "") } else { (&diff_ids[..], "layers") };
        let config = serde_json::json!({
            "architecture": "amd64", "os": "linux",
            "config": { "Labels": { "id": image.id.as_str() } },
            "rootfs": { "type": kind, "diff_ids": diff_ids },
        });
        let size = image.size;
        let details = match JsonText::new(config.to_string()) {
            Some(config) => ImageDetails::of_config(image, config),
            None => ImageDetails::bare(image),
        };
        Ok(Some(ImageDetails { compressed: Some(size), ..details }))
    }

    async fn pull(&self, request: &PullRequest, progress: Progress) -> Result<ImageId, RuntimeError> {
        let (offer, takes) = {
            let mut fake = self.enter("pull", &request.image.image)?;
            fake.requests.push(request.clone());
            let (name, offer) = fake.offered(request)?;
            fake.pulls_running += 1;
            fake.pulls_running_max = fake.pulls_running_max.max(fake.pulls_running);
            (Offer { user: Some(name), ..offer }, fake.pull_takes)
        };
        let running = Running(self);
        let layer = manifest(&offer.id);
        progress(PullEvent::Resolved { manifest: layer.clone(), layers: vec![(layer.clone(), offer.size)] });
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        progress(PullEvent::Layer { digest: layer, state: LayerState::Done });
        drop(running);
        self.lock().store(&offer.user.unwrap_or_default(), &offer.id, offer.size);
        Ok(offer.id)
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let mut fake = self.enter("remove", &spec.image)?;
        let Some(id) = fake.find(&spec.image)?.map(|image| image.id.clone()) else { return Ok(()) };
        let kept = fake.keeps.get(&id).cloned();
        match (kept, fake.images.get_mut(&id)) {
            (Some(digests), Some(image)) => {
                let image = Arc::make_mut(image);
                (image.tags, image.digests) = (Vec::new(), digests);
            }
            _ => drop(fake.images.remove(&id)),
        }
        Ok(())
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        let fake = self.enter("filesystem", "")?;
        let usage = FilesystemUsage {
            measured_at: SystemTime::now(),
            mountpoint: PathBuf::from("/"),
            used: fake.images.values().map(|image| image.size).sum(),
            inodes_used: Some(0),
        };
        Ok(ImageFilesystems { images: vec![usage.clone()], containers: vec![usage], reserved: fake.reserved })
    }
}

#[async_trait]
impl LocalStore for FakeRuntime {
    async fn estimate(&self, request: &PullRequest) -> Result<Option<PullEstimate>, RuntimeError> {
        if !self.lock().estimates {
            return Ok(None);
        }
        let fake = self.enter("estimate", &request.image.image)?;
        let (name, offer) = fake.offered(request)?;
        if let Some(estimate) = fake.estimated.get(&name) {
            return Ok(Some(estimate.clone()));
        }
        let is_here = fake.images.contains_key(&offer.id);
        Ok(Some(PullEstimate {
            manifest: manifest(&offer.id),
            bytes_total: offer.size,
            bytes_missing: if is_here { ByteSize::ZERO } else { offer.size },
            bytes_unpacked: if is_here { ByteSize::ZERO } else { offer.size },
            layers_missing: usize::from(!is_here),
        }))
    }

    async fn untag(&self, name: &str) -> Result<(), RuntimeError> {
        let mut fake = self.enter("untag", name)?;
        let name = normal(name);
        fake.forget(&name);
        let nameless: Vec<ImageId> =
            fake.images.values().filter(|image| image.tags.is_empty()).map(|image| image.id.clone()).collect();
        for id in nameless {
            fake.images.remove(&id);
        }
        Ok(())
    }

    async fn layers(&self) -> Result<Option<LayerGraph>, RuntimeError> {
        if self.lock().layers.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.enter("layers", "")?.graph()))
    }
}

#[async_trait]
impl ContainerService for FakeRuntime {
    async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        Ok(self.enter("containers", "")?.containers.clone())
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        Ok(self.enter("sandboxes", "")?.sandboxes.clone())
    }

    async fn mounted_images(&self, container_id: &str) -> Result<Vec<String>, RuntimeError> {
        Ok(self.enter("mounts", container_id)?.volumes.get(container_id).cloned().unwrap_or_default())
    }

    async fn is_gone(&self, container_id: &str) -> Result<bool, RuntimeError> {
        let fake = self.lock();
        Ok(fake.tells_who_is_gone && fake.containers.iter().all(|container| container.id != container_id))
    }

    async fn sandbox_image(&self, sandbox_id: &str) -> Result<SandboxImage, RuntimeError> {
        let fake = self.enter("sandbox", sandbox_id)?;
        if fake.tells_who_is_gone && fake.sandboxes.iter().all(|sandbox| sandbox.id != sandbox_id) {
            return Ok(SandboxImage::Gone);
        }
        Ok(fake.sandbox_images.get(sandbox_id).cloned().map_or(SandboxImage::Unknown, SandboxImage::Named))
    }

    async fn default_sandbox_images(&self) -> Result<Vec<String>, RuntimeError> {
        Ok(self.enter("config", "")?.default_sandbox_images.clone())
    }
}
