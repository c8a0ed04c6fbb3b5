//! Builds a node from its configuration.

use std::{
    io::Write as _,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, SystemTime},
};

use imagelet_core::{
    audit_log::AuditLog,
    credentials::{
        CredentialProvider, CredentialQuery, NodeKeyring, Provided, Providers, Standalone, TokenCache, TokenSource,
        TrackedCredential,
    },
    error::RuntimeErrorKind,
    events::{EventSink, LogEvents},
    gc::ImageGc,
    image::Digest,
    inventory::Inventory,
    manager::{ImageManager, ManagerParts, ManagerReports, PodStarts, PullRecorder, PullSettings, StaleUse},
    metrics::Metrics,
    ports::{
        CombinedContainers, ContainerService, ImageFilesystems, ImageService, NoContainers, RuntimeManager,
        UsableImages,
    },
    printable::printable,
    records::{Absent, Guard, KubeletRecords, PullRecords, RecordsError, RecordsSettings},
};
use imagelet_kube::{ClusterTokens, LookAheadParts, NodeAgent, NodeAgentParts};
use imagelet_oci::{Access, Durability, Engine, EngineConfig};
use imagelet_runtime::{
    ContainerdSizes, ImportSite, ImportingImages, RuntimeSite,
    containerd::{ContainerdClient, ContainerdNames},
    cri::{Endpoint, EndpointError, RemoteContainerService, RemoteImageService},
};
use tokio::sync::watch;

use crate::{
    config::{Backend, Environment, KubernetesSettings, RuntimeSettings, Settings, StoreSettings},
    failure::Failure,
    node::{Collection, Images, LocalNode, NodePlace, NodeStatus, Pulls, SpaceByCollection, declare_metrics},
    traces::Tracer,
};

const KUBELET_ROOT: &str = "/var/lib/kubelet";
const EVENTS_MAX: NonZeroUsize = NonZeroUsize::new(1000).expect("a thousand is not zero");
/// Timeout of a credential helper, which may prompt the user. The default for credential providers is the same.
pub const HELPER_MAX: Duration = Duration::from_mins(1);
const RECOVER_MAX: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Daemon,
    /// A process that runs one command. Its pulls are not queued, and it reports an unreachable registry at once.
    Command,
}

#[derive(Clone, Copy, Debug)]
pub struct StoreAccess {
    pub access: Access,
    pub lock_wait: Duration,
}

/// Opens the store or runtime and its state as a node. Waits for the store's lock, and up to 0.5 s for a runtime.
pub async fn open_node(settings: Settings, role: Role, wanted: StoreAccess) -> Result<Arc<LocalNode>, Failure> {
    let metrics = Arc::new(Metrics::new());
    declare_metrics(&metrics);
    let sizes = settings.images.backend.engine().sizes();
    let backend = match &settings.images.backend {
        Backend::Embedded(store) => open_store(store, &settings, role, wanted).await?,
        Backend::Cri(runtime) => open_runtime(runtime, &settings, role, &metrics).await?,
    };
    let (engine, imports) = (backend.engine.clone(), backend.imports.clone());
    let tracer = Tracer::new(settings.interfaces.traces.as_ref().filter(|_| role == Role::Daemon), &metrics);
    let (images, records) = open_images(backend, settings, role, &metrics).await?;
    let settings = images.settings();
    let cluster = settings.node.kubernetes.as_ref().filter(|_| role == Role::Daemon);
    let tokens: Arc<dyn TokenSource> = match cluster {
        Some(KubernetesSettings { access, .. }) => Arc::new(ClusterTokens(access.client())),
        None => Arc::new(Standalone),
    };
    let providers = open_providers(tokens, &settings, Arc::clone(&metrics)).await?;
    let pod_starts = Arc::new(PodStarts::new(Arc::clone(&metrics)));
    let verified_names = images.place.state.join("verified-names.json");
    let manager = Arc::new(ImageManager::new(ManagerParts {
        settings: pull_settings(&settings, role),
        keyring: Arc::clone(&images.keyring),
        providers: Arc::clone(&providers) as Arc<dyn CredentialProvider>,
        reports: ManagerReports {
            events: Arc::clone(&images.events) as Arc<dyn EventSink>,
            metrics: Arc::clone(&metrics),
            recorder: Some(Arc::clone(&pod_starts) as Arc<dyn PullRecorder>),
            decisions: Arc::clone(&images.log),
        },
        inventory: Some(Arc::clone(&images.inventory)),
        stale: settings.images.stale_max.map(|age_max| StaleUse::new(age_max, Some(verified_names))),
        ..ManagerParts::new(images.runtime.clone(), Arc::clone(&records))
    }));
    let agent = cluster.map(|cluster| Arc::new(agent(cluster, &images, &manager, &pod_starts, &metrics)));
    let gc = ImageGc::new(images.runtime.clone(), Arc::clone(&images.inventory))
        .with_decisions(Arc::clone(&images.log))
        .with_records(records, engine.is_some());
    gc.set_rules(settings.collection.rules.clone());
    let collection = Arc::new(Collection::new(images.clone(), gc, Arc::clone(&metrics)));
    let space = || Arc::new(SpaceByCollection(Arc::downgrade(&collection)));
    if let Some(engine) = &engine {
        engine.ask_for_room(space());
    }
    if let Some((images, site)) = &imports {
        site.room.get_or_init(|| space());
        tokio::spawn(ImportingImages::watch(Arc::downgrade(images)));
    }
    let status = NodeStatus {
        metrics,
        pod_starts,
        agent,
        imports: imports.map(|(images, _)| images),
        unpacking: engine.map(|engine| engine.confinement().to_string()),
        sizes,
        started_at: SystemTime::now(),
    };
    Ok(Arc::new(LocalNode { pulls: Pulls { images, manager, tracer, providers }, collection, status }))
}

struct OpenBackend {
    /// `open_images` adds the pinned names and the metrics.
    runtime: RuntimeManager,
    engine: Option<Arc<Engine>>,
    imports: Option<(Arc<ImportingImages>, Arc<RuntimeSite>)>,
    name: String,
    state: PathBuf,
    uses_known: bool,
}

async fn open_images(
    backend: OpenBackend,
    settings: Settings,
    role: Role,
    metrics: &Arc<Metrics>,
) -> Result<(Images, Arc<PullRecords>), Failure> {
    let runtime = RuntimeManager { pinned: Arc::new(settings.images.pinned.clone()), ..backend.runtime };
    let (runtime, is_embedded) = (runtime.measured(Arc::clone(metrics)), backend.engine.is_some());
    // The inventory is read-only if the store is. The owner of a writable store also owns its inventory.
    let is_read_only = match &backend.engine {
        Some(engine) => engine.check_writable().is_err(),
        None => is_on_read_only_disk(&backend.state),
    };
    let opened = tokio::task::spawn_blocking({
        let (runtime, settings, state) = (runtime.clone(), settings.clone(), backend.state.clone());
        move || open_state(runtime, &state, &settings, is_read_only, !is_embedded)
    });
    let log = match settings.collection.decisions_max {
        Some(bytes_max) if !is_read_only => AuditLog::new(&backend.state.join("decisions"), bytes_max.get()),
        // The records of a disabled log can still be read.
        _ => AuditLog::read_only(&backend.state.join("decisions")),
    };
    let (inventory, records, first_run_adopts) = opened.await??;
    inventory.protect_sandbox_images(settings.images.sandbox_images.clone());
    inventory.leases.start(settings.collection.lease_for, SystemTime::now());
    // Only this process pulls into an embedded store, so no other process continues an interrupted pull.
    let is_alone = is_embedded && settings.pulls.node_policy.access.resolves_interrupted_pulls;
    // A command on a runtime waits for the image list only if an interrupted pull has left an intent.
    let is_due = !is_read_only && (is_embedded || role == Role::Daemon || records.has_open_intents());
    if is_due {
        let recovered = tokio::time::timeout(RECOVER_MAX, recover(&runtime, &records, is_alone)).await;
        if recovered.is_err() && records.has_open_intents() {
            tracing::warn!("the runtime takes too long to list its images; the records of interrupted pulls stay open");
        }
    }
    let images = Images {
        runtime,
        inventory,
        keyring: Arc::new(keyring(&settings, role)),
        log: Arc::new(log),
        events: Arc::new(LogEvents::new(EVENTS_MAX)),
        place: Arc::new(NodePlace {
            backend: backend.name,
            state: backend.state,
            is_read_only,
            is_daemon: role == Role::Daemon,
            uses_known: backend.uses_known,
            first_run_adopts: first_run_adopts.into(),
        }),
        settings: watch::Sender::new(Arc::new(settings)),
    };
    Ok((images, records))
}

fn agent(
    cluster: &KubernetesSettings,
    images: &Images,
    manager: &Arc<ImageManager>,
    pod_starts: &Arc<PodStarts>,
    metrics: &Arc<Metrics>,
) -> NodeAgent {
    let KubernetesSettings { access, node, look_ahead_max, events: sends_events, progress_events } = cluster;
    let images_max = look_ahead_max.filter(|_| images.settings().pulls.node_policy.pods.looks_ahead);
    let look_ahead = images_max.map(|images_max| LookAheadParts {
        manager: Arc::clone(manager),
        runtime: images.runtime.clone(),
        images_max,
        events: Arc::clone(&images.events) as Arc<dyn EventSink>,
    });
    let parts = NodeAgentParts {
        node: node.clone(),
        inventory: Arc::clone(&images.inventory),
        manager: Arc::clone(manager),
        metrics: Arc::clone(metrics),
        starts: Arc::clone(pod_starts),
        look_ahead,
        events: sends_events.then(|| Arc::clone(&images.events)),
        progress_events: *progress_events,
    };
    NodeAgent::new(access.client(), parts)
}

async fn open_store(
    store: &StoreSettings,
    settings: &Settings,
    role: Role,
    wanted: StoreAccess,
) -> Result<OpenBackend, Failure> {
    let StoreAccess { access, lock_wait } = wanted;
    let mut config = EngineConfig { registry: settings.images.registry.clone(), ..store.engine.clone() };
    (config.place.access, config.place.lock_wait) = (access, lock_wait);
    let report = move |what: &str| match role {
        Role::Daemon => tracing::warn!("{what}"),
        Role::Command => drop(writeln!(std::io::stderr(), "{}", printable(what))),
    };
    let engine = Engine::open_telling(config, &report).await?;
    let mut containers = engine.container_service();
    if let Some((endpoint, timeout)) = &store.runtime {
        // The runtime may start after the daemon. Only requests for the uses of images wait for the runtime.
        let runtime = RemoteContainerService::lazy(endpoint, *timeout)?
            .streaming_lists(settings.pulls.node_policy.inventory.streams_lists);
        containers = Arc::new(CombinedContainers::new(containers, Arc::new(runtime), endpoint.to_string()));
    }
    Ok(OpenBackend {
        runtime: RuntimeManager::new(Arc::clone(&engine) as Arc<dyn ImageService>, containers),
        name: format!("store {}", store.engine.place.root.display()),
        state: store.engine.place.root.join("state"),
        engine: Some(engine),
        imports: None,
        uses_known: true,
    })
}

async fn open_runtime(
    runtime: &RuntimeSettings,
    settings: &Settings,
    role: Role,
    metrics: &Arc<Metrics>,
) -> Result<OpenBackend, Failure> {
    let timeout = settings.node.request_timeout;
    let address = &runtime.endpoint;
    // Lists are streamed, so that no list exceeds the message limit. A runtime without streams rejects only one call.
    let streams = settings.pulls.node_policy.inventory.streams_lists;
    let watched = |images: RemoteImageService| images.with_stall_max(runtime.stall_max).streaming_lists(streams);
    let (mut uses_known, mut imports) = (true, None);
    let (images, containers): (Arc<dyn ImageService>, Arc<dyn ContainerService>) = match role {
        // A daemon may start before its runtime, so it connects with the first call.
        Role::Daemon => {
            let containers = RemoteContainerService::lazy(address, timeout)?.streaming_lists(streams);
            let images = Arc::new(watched(RemoteImageService::lazy(address, timeout)?));
            let (durability, registry) = (Durability::Commit, settings.images.registry.clone());
            let engine = EngineConfig { durability, registry, ..runtime.engine.clone() };
            let sandbox_images = settings.images.sandbox_images.iter().flatten();
            let site = Arc::new(RuntimeSite {
                containers: containers.clone(),
                images: Arc::<RemoteImageService>::clone(&images),
                socket: address.path().to_owned(),
                engine,
                sandbox_images: sandbox_images.map(|pattern| pattern.text().to_owned()).collect(),
                room: OnceLock::new(),
                opened: Mutex::default(),
            });
            let port: Arc<dyn ImportSite> = Arc::<RuntimeSite>::clone(&site);
            let images = Arc::new(ImportingImages::new(images, port, runtime.import, Arc::clone(metrics)));
            imports = Some((Arc::clone(&images), site));
            (images, Arc::new(containers))
        }
        // A command does not import: it has only one pull, and a daemon may own the staging folder.
        Role::Command => {
            let images = Arc::new(watched(RemoteImageService::connect(address, timeout).await?));
            match RemoteContainerService::connect(address, timeout).await {
                Ok(containers) => (images, Arc::new(containers.streaming_lists(streams))),
                Err(error) if error.kind() == RuntimeErrorKind::Unsupported => {
                    uses_known = false;
                    (images, Arc::new(NoContainers))
                }
                Err(error) => return Err(error.into()),
            }
        }
    };
    // containerd serves its own API and CRI on one socket, so this client needs no further address.
    let (containerd, cri) = (ContainerdClient::new(address.path()), Arc::clone(&images));
    // The folder is named by a digest of the socket, so that two runtimes on one machine have separate state.
    let folder = Digest::of(address.path().as_os_str().as_encoded_bytes());
    Ok(OpenBackend {
        runtime: RuntimeManager {
            layers: Some(Arc::new(ContainerdSizes::new(containerd.clone(), timeout))),
            usable: Some(UsableImages::new(Arc::new(containerd.clone()))),
            names: Some(Arc::new(ContainerdNames { client: containerd, cri })),
            ..RuntimeManager::new(images, containers)
        },
        engine: None,
        imports,
        name: format!("runtime {address}"),
        state: runtime.engine.place.root.join("runtimes").join(&folder.hex()[..16]),
        uses_known,
    })
}

/// The file systems that a runtime reports, for a program that has opened no node.
pub async fn runtime_filesystems(runtime: &RuntimeSettings, timeout: Duration) -> Result<ImageFilesystems, Failure> {
    let images = RemoteImageService::connect(&runtime.endpoint, timeout).await?;
    Ok(images.filesystem().await?)
}

pub fn parse_endpoint(endpoint: &str) -> Result<Endpoint, Failure> {
    let invalid = |error: EndpointError| Failure::because(format!("`{endpoint}` is no endpoint"), &error);
    endpoint.parse().map_err(invalid)
}

/// Opens the inventory and the pull records, and returns whether the inventory is empty, as at the first start on a
/// node. If they are read-only, changes are lost at the end of the process.
fn open_state(
    runtime: RuntimeManager,
    directory: &Path,
    settings: &Settings,
    is_read_only: bool,
    adopts: bool,
) -> Result<(Arc<Inventory>, Arc<PullRecords>, bool), Failure> {
    let folder = directory.join("inventory");
    let inventory = if is_read_only {
        Inventory::open_read_only(runtime, &folder)?
    } else {
        Inventory::open(runtime, Some(&folder))?
    };
    let inventory = inventory.forgetful(!settings.pulls.node_policy.inventory.remembers_absent_images);
    let first_run_adopts = !is_read_only && inventory.remembers_nothing();
    if first_run_adopts {
        // A kubelet or an earlier run of imagelet may have left pull records, whose images are adopted.
        let kubelet = settings.collection.adopt_from.as_deref().filter(|_| adopts);
        for root in kubelet.into_iter().chain([directory]) {
            take_over(&inventory, root);
        }
    }
    let records = match records_settings(settings, adopts) {
        None => Ok(PullRecords::off()),
        Some(kept) if is_read_only => PullRecords::open_read_only(directory, kept),
        Some(kept) => PullRecords::open(directory, kept),
    };
    Ok((Arc::new(inventory), Arc::new(records?), first_run_adopts))
}

fn take_over(inventory: &Inventory, root: &Path) {
    match KubeletRecords::below(root).all() {
        Ok(found) => {
            if let Some((file, error)) = found.passed_over.first() {
                let (root, records) = (root.display(), found.passed_over.len());
                tracing::warn!(%root, records, file, %error, "took over the node without pull records that cannot be read");
            }
            found.dated.into_iter().for_each(|(id, at)| inventory.adopt(&id, Some(at)));
        }
        Err(error) => {
            tracing::warn!(root = %root.display(), %error, "could not read pull records; their images are new");
        }
    }
}

/// Whether the file system of a directory, or of its first existing parent, is read-only.
fn is_on_read_only_disk(directory: &Path) -> bool {
    let found = directory.ancestors().find_map(|place| rustix::fs::statvfs(place).ok());
    found.is_some_and(|stat| stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Resolves the intents of interrupted pulls, whose images then need a credential check. Also records preloaded images.
async fn recover(runtime: &RuntimeManager, records: &Arc<PullRecords>, is_alone: bool) {
    let mark = records.mark(SystemTime::now());
    let images = match runtime.list(None).await {
        Ok(images) => images,
        Err(error) => {
            // If no intent is open, a later collection looks for preloaded images.
            if records.has_open_intents() {
                tracing::warn!(error = error.chain(), "could not compare the pull records with the images");
            }
            return;
        }
    };
    let records = Arc::clone(records);
    let absent = if is_alone { Absent::Removed } else { Absent::Stays };
    let resolve = move || {
        let has_open = records.has_open_intents();
        let found = has_open.then(|| records.resolve_open_intents(&images, SystemTime::now(), absent)).transpose()?;
        records.remember_preloaded(images.iter().map(|image| &**image), &mark)?;
        Ok::<_, RecordsError>(found)
    };
    match tokio::task::spawn_blocking(resolve).await {
        Ok(Ok(Some(found))) => {
            tracing::info!(found.finished, found.unfinished, "took up the records of cut-off pulls");
        }
        Ok(Ok(None)) => {}
        Ok(Err(error)) => tracing::warn!(error = Failure::of(&error).to_string(), "could not take up the pull records"),
        Err(error) => tracing::error!(%error, "could not take up the pull records"),
    }
}

fn pull_settings(settings: &Settings, role: Role) -> PullSettings {
    match role {
        Role::Daemon => settings.pulls,
        // An interrupted command must also stop its pull, so the pull settings of the daemon do not apply.
        Role::Command => PullSettings { node_policy: settings.pulls.node_policy, ..PullSettings::default() },
    }
}

/// The settings of the pull records. `has_kubelet`: the node's kubelet may pull into the runtime without imagelet.
fn records_settings(settings: &Settings, has_kubelet: bool) -> Option<RecordsSettings> {
    let guard = if settings.pulls.node_policy.access.intents_guard_images { Guard::Image } else { Guard::Spelling };
    Some(RecordsSettings {
        policy: settings.records.verification.clone()?,
        guard,
        age_max: settings.records.age_max,
        kubelet: settings.collection.adopt_from.as_deref().filter(|_| has_kubelet).map(KubeletRecords::below),
    })
}

pub(super) fn keyring(settings: &Settings, role: Role) -> NodeKeyring {
    let Environment { folders, variables, .. } = &settings.environment;
    let keyring = match role {
        Role::Daemon => match settings.named_docker_config() {
            Some(path) => NodeKeyring::from_file(path),
            None => NodeKeyring::searching(Path::new(KUBELET_ROOT), folders.home.as_deref()),
        },
        Role::Command => NodeKeyring::from_logins(settings.logins_of_command()),
    };
    let keyring = if settings.pulls.node_policy.access.docker_keyring { keyring } else { keyring.as_the_kubelet() };
    keyring.running_helpers(variables.clone(), HELPER_MAX)
}

/// The node's credentials for a repository, in the order in which a pull tries them, and the failures of their sources.
pub async fn node_credentials(settings: &Settings, repository: &str) -> Result<Provided, Failure> {
    let node = keyring(settings, Role::Command);
    let (of_helper, problem) = node.ask_helper(repository).await;
    let found = of_helper.into_iter().chain(node.keyring().await.lookup_at(repository));
    let providers = open_providers(Arc::new(Standalone), settings, Arc::default()).await?;
    let query = CredentialQuery { repository: repository.to_owned(), ..CredentialQuery::default() };
    let mut provided = providers.provide(&query).await;
    provided.credentials.splice(0..0, found.filter(TrackedCredential::is_usable));
    provided.failures.splice(0..0, problem);
    Ok(provided)
}

pub(super) async fn open_providers(
    tokens: Arc<dyn TokenSource>,
    settings: &Settings,
    metrics: Arc<Metrics>,
) -> Result<Arc<Providers>, Failure> {
    let providers = Arc::new(Providers::new(Arc::new(TokenCache::new(tokens)), metrics));
    configure_providers(&providers, settings).await?;
    Ok(providers)
}

pub(super) async fn configure_providers(providers: &Arc<Providers>, settings: &Settings) -> Result<(), Failure> {
    let options = settings.credentials.providers.clone();
    let providers = Arc::clone(providers);
    let configured = tokio::task::spawn_blocking(move || providers.configure(options.as_ref())).await;
    let configured = configured.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    configured.map_err(|error| {
        Failure::because("could not register the credential providers", &error)
            .or_hint("`imagelet help credentials` describes their configuration")
    })
}

#[cfg(test)]
mod tests {
    use imagelet_core::{gc::GcPolicy, testing::WaySettings};

    use super::*;
    use crate::config::Sources;

    /// The two configurations under which vectors run.
    #[derive(Clone, Copy, Debug)]
    enum VectorWay {
        Kubelet,
        Shipped,
    }

    impl WaySettings for VectorWay {
        fn is_shipped(self) -> bool {
            matches!(self, Self::Shipped)
        }
    }

    #[test]
    fn the_vectors_are_run_under_what_the_program_makes_of_its_configuration() {
        for (way, compatibility) in [(VectorWay::Kubelet, Some("kubelet")), (VectorWay::Shipped, None)] {
            let mut sources = Sources::new(Environment { root: true, ..Environment::default() });
            if let Some(compatibility) = compatibility {
                sources.add_flag("--test", "compatibility", compatibility);
            }
            let settings = sources.settings().expect("the defaults hold");
            assert_eq!(settings.pulls.node_policy, way.node_policy());
            assert_eq!(pull_settings(&settings, Role::Daemon), way.pull_settings(), "{way:?}");
            let records = records_settings(&settings, true).expect("pulls are recorded");
            assert_eq!(records.guard, way.guard(), "{way:?}");
            let marks = GcPolicy::new(85, 80, Duration::from_mins(2), None).expect("the defaults hold");
            assert_eq!(settings.collection.policy, way.collecting(marks), "{way:?}");
        }
    }
}
