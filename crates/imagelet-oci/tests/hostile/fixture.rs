//! A host with things that must not be touched, a registry on loopback, and the pull of one case with all its checks.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::Write as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{Path as UrlPath, State},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use imagelet_core::{
    error::RuntimeError,
    image::{Digest, ImageId, ImageSpec},
    ports::{ImageService as _, LocalStore as _, MountOptions, PullRequest, no_progress},
};
use imagelet_oci::{Engine, EngineConfig};

use crate::{
    archive::Archive,
    case::{Case, Outcome},
    seen,
};

/// From `STORE/tmp/RANDOM/fs` to the folder beside the store.
const CLIMB: &str = "../../../../host";

/// What attacks aim at.
pub(crate) struct Host {
    /// Absolute path of a folder with files of the host, without the leading slash.
    pub(crate) path: String,
    /// The same from the root of a layer in the making, `STORE/tmp/RANDOM/fs`.
    climb: &'static str,
}

impl Host {
    /// A host that is nowhere, for those who only want to know which cases there are.
    pub(crate) fn nowhere() -> Self {
        Self { path: "nowhere".into(), climb: CLIMB }
    }

    /// A file of the host, by its absolute name.
    pub(crate) fn absolute(&self, name: &str) -> String {
        format!("/{}/{name}", self.path)
    }

    /// The same as a layer could reach it from its root.
    pub(crate) fn climbing(&self, name: &str) -> String {
        format!("{}/{name}", self.climb)
    }
}

/// Names that no case may make outside its layer start so.
pub(crate) const MARK: &str = "imagelet-hostile-";

/// A host, a store and a registry.
pub(crate) struct Site {
    home: tempfile::TempDir,
    pub(crate) host: Host,
    engine: Arc<Engine>,
    registry: Registry,
}

impl Site {
    pub(crate) async fn new() -> Self {
        let home = home();
        let host = home.path().join("host");
        fs::create_dir_all(host.join("dir")).expect("a folder");
        for (name, content, mode) in [
            ("secret", "the host's own", 0o640),
            ("passwd", "root:x:0:0", 0o644),
            ("suid", "a program", 0o4755),
            ("twice", "two names", 0o600),
            ("dir/file", "below", 0o644),
        ] {
            fs::write(host.join(name), content).expect("a file");
            fs::set_permissions(host.join(name), fs::Permissions::from_mode(mode)).expect("a mode");
        }
        fs::hard_link(host.join("twice"), host.join("twice-too")).expect("a link");
        symlink("secret", host.join("link")).expect("a link");
        fs::set_permissions(host.join("dir"), fs::Permissions::from_mode(0o751)).expect("a mode");
        let engine = Engine::open(EngineConfig::new(home.path().join("store"))).await;
        let engine = engine.unwrap_or_else(|error| panic!("open: {}", error.chain()));
        let path = host.to_str().expect("a plain path").trim_start_matches('/').to_owned();
        Self { host: Host { path, climb: CLIMB }, home, engine, registry: Registry::start().await }
    }

    fn store(&self) -> PathBuf {
        self.home.path().join("store")
    }

    /// Pulls a case's image and looks at everything. `Err` says what is wrong.
    pub(crate) async fn check(&self, case: &Case) -> Result<(), String> {
        let checked = self.check_pull(case).await;
        if checked.is_err() {
            // The next case starts afresh.
            for name in ["case", "good"] {
                self.remove(name).await?;
            }
        }
        checked
    }

    async fn check_pull(&self, case: &Case) -> Result<(), String> {
        let before = self.outside();
        let digests = self.registry.publish("case", &case.layers);
        let pulled = self.pull("case").await;
        let after = self.outside();
        if before != after {
            let changed: Vec<_> = after.iter().filter(|(path, seen)| before.get(*path) != Some(seen)).collect();
            return Err(format!("the host was touched: {changed:?}"));
        }
        if !listing(&self.store().join("tmp")).is_empty() && !self.settles(|| listing(&self.store().join("tmp"))).await
        {
            return Err("something is left in tmp/".into());
        }
        match (pulled, &case.outcome) {
            (Err(error), Outcome::Fails(words)) => {
                self.check_error(&error, &digests, words)?;
                self.check_empty().await?;
                self.check_alive().await
            }
            (Err(error), Outcome::Contained) => {
                self.check_error(&error, &digests, &[])?;
                self.check_empty().await?;
                self.check_alive().await
            }
            (Err(error), Outcome::Succeeds(_)) => Err(format!("it must succeed: {}", error.chain())),
            (Ok(_), Outcome::Fails(words)) => {
                self.remove("case").await?;
                Err(format!("it must fail, with {words:?}"))
            }
            (Ok(_), outcome) => {
                let checked = self.check_layers(case, outcome).await;
                self.remove("case").await?;
                checked?;
                self.check_empty().await
            }
        }
    }

    async fn check_layers(&self, case: &Case, outcome: &Outcome) -> Result<(), String> {
        let folders: Vec<PathBuf> =
            case.layers.iter().map(|layer| self.store().join("layers").join(Digest::of(layer).hex())).collect();
        for found in listing(&self.store().join("layers")) {
            let parts = ["fs", "layer.json", "implicit.json", "ownership.json", "files.list"];
            if !folders.contains(&found) {
                return Err(format!("`{}` is no layer of the image", found.display()));
            }
            for part in listing(&found) {
                let name = part.file_name().expect("it has a name").to_string_lossy();
                if !parts.contains(&&*name) && !name.starts_with("list") {
                    return Err(format!("`{}` lies beside the layer", part.display()));
                }
            }
        }
        if let Outcome::Succeeds(trees) = outcome {
            for (folder, tree) in folders.iter().zip(trees) {
                seen::check(folder, tree)?;
            }
        }
        match &case.merged {
            Some(shown) => self.check_merged(shown).await,
            None => Ok(()),
        }
    }

    async fn check_merged(&self, wanted: &[(&str, Option<&str>)]) -> Result<(), String> {
        assert!(seen::is_root(), "mounting needs root: run the tests as root");
        let target = self.home.path().join("mount");
        fs::create_dir_all(&target).expect("a folder");
        let spec = ImageSpec::new(self.registry.name("case"));
        if let Err(error) = self.engine.mount(&spec, &target, MountOptions::default()).await {
            return Err(format!("it cannot be mounted: {}", error.chain()));
        }
        let shown = seen::merged(&target);
        self.engine.unmount(&target, false).await.map_err(|error| error.chain())?;
        fs::remove_dir(&target).expect("it is empty");
        let wanted: BTreeMap<_, _> =
            wanted.iter().map(|(path, content)| ((*path).to_owned(), content.map(str::to_owned))).collect();
        if shown == wanted { Ok(()) } else { Err(format!("a mount shows {shown:?}")) }
    }

    fn check_error(&self, error: &RuntimeError, layers: &[Digest], words: &[String]) -> Result<(), String> {
        let text = error.chain();
        let named =
            layers.iter().any(|layer| text.contains(layer.as_str())) || text.contains(&self.registry.name("case"));
        if !named {
            return Err(format!("the error names neither the image nor a layer: {text}"));
        }
        if text.len() > 2000 || text.chars().any(char::is_control) {
            return Err(format!("the error is no line for a log: {text:?}"));
        }
        match words.iter().find(|word| !text.contains(word.as_str())) {
            Some(word) => Err(format!("the error lacks {word:?}: {text}")),
            None => Ok(()),
        }
    }

    /// Nothing is listed and nothing is left, at the latest two seconds after a pull that was given up.
    async fn check_empty(&self) -> Result<(), String> {
        let listed = self.engine.list(None).await.map_err(|error| error.chain())?;
        if !listed.is_empty() {
            return Err(format!("an image is listed: {listed:?}"));
        }
        let left = || -> Vec<PathBuf> {
            ["tmp", "layers", "images", "trash"].iter().flat_map(|folder| listing(&self.store().join(folder))).collect()
        };
        if self.settles(left).await { Ok(()) } else { Err(format!("something is left: {:?}", left())) }
    }

    async fn settles(&self, left: impl Fn() -> Vec<PathBuf>) -> bool {
        for _ in 0..100 {
            if left().is_empty() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    }

    /// The engine still does its work.
    async fn check_alive(&self) -> Result<(), String> {
        let good = Archive::new().file("good", "as ever").end();
        let digest = Digest::of(&good);
        self.registry.publish("good", &[good]);
        self.pull("good").await.map_err(|error| format!("no pull works after it: {}", error.chain()))?;
        let file = self.store().join("layers").join(digest.hex()).join("fs/good");
        if fs::read(&file).ok().as_deref() != Some(b"as ever") {
            return Err("a good image is not what it was after it".into());
        }
        self.remove("good").await
    }

    pub(crate) fn publish(&self, layers: &[Vec<u8>]) {
        self.registry.publish("case", layers);
    }

    pub(crate) async fn pull_published(&self) -> Result<ImageId, RuntimeError> {
        self.pull("case").await
    }

    /// Pulls an image of one layer beside all others; answers the folder the layer became.
    pub(crate) async fn pull_as(&self, name: &str, layer: &[u8]) -> Result<PathBuf, RuntimeError> {
        self.registry.publish(name, &[layer.to_vec()]);
        self.pull(name).await?;
        Ok(self.store().join("layers").join(Digest::of(layer).hex()).join("fs"))
    }

    /// A folder beside the store.
    pub(crate) fn scratch(&self) -> &Path {
        self.home.path()
    }

    async fn pull(&self, name: &str) -> Result<ImageId, RuntimeError> {
        let image = ImageSpec::new(self.registry.name(name));
        self.engine.pull(&PullRequest { image, ..PullRequest::default() }, no_progress()).await
    }

    pub(crate) async fn remove(&self, name: &str) -> Result<(), String> {
        self.engine.remove(&ImageSpec::new(self.registry.name(name))).await.map_err(|error| error.chain())
    }

    /// Everything outside the store that an attack could change, by path.
    fn outside(&self) -> BTreeMap<PathBuf, seen::Trace> {
        let mut traces = BTreeMap::new();
        let mut open = vec![self.home.path().to_owned()];
        while let Some(path) = open.pop() {
            let metadata = fs::symlink_metadata(&path).expect("it is there");
            if metadata.is_dir() {
                open.extend(listing(&path).into_iter().filter(|path| *path != self.store()));
            }
            // Mounting makes and removes a folder here.
            if path != self.home.path() {
                traces.insert(path.clone(), seen::Trace::of(&path, &metadata));
            }
        }
        let places = ["/", "/etc", "/tmp", "/root", "/var/tmp", "/dev/shm"].map(PathBuf::from);
        for place in places.into_iter().chain(std::env::current_dir()).chain([self.store(), self.store().join("tmp")]) {
            for path in listing(&place) {
                if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(MARK.as_bytes())) {
                    let metadata = fs::symlink_metadata(&path).expect("it is there");
                    traces.insert(path.clone(), seen::Trace::of(&path, &metadata));
                }
            }
        }
        traces
    }
}

/// A folder to work in: in memory where that takes user attributes and has room. A commit syncs its whole file system,
/// and on a disk that others write to the suite would wait for them, hundreds of times.
fn home() -> tempfile::TempDir {
    const ROOM: u64 = 256 << 20;
    let in_memory = || {
        let home = tempfile::tempdir_in("/dev/shm").ok()?;
        let disk = rustix::fs::statvfs(home.path()).ok()?;
        rustix::fs::setxattr(home.path(), "user.probe", b"1", rustix::fs::XattrFlags::empty()).ok()?;
        rustix::fs::removexattr(home.path(), "user.probe").ok()?;
        (disk.f_bavail.saturating_mul(disk.f_frsize) > ROOM).then_some(home)
    };
    in_memory().unwrap_or_else(|| tempfile::tempdir().expect("a folder"))
}

/// What lies in a folder; nothing if it is gone.
fn listing(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

/// Media type and bytes by path below `/v2/`.
type Content = Arc<Mutex<HashMap<String, (&'static str, Bytes)>>>;

struct Registry {
    port: u16,
    content: Content,
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

impl Registry {
    async fn start() -> Self {
        let content = Content::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let router = Router::new().route("/v2/{*path}", axum::routing::get(serve)).with_state(Arc::clone(&content));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, content }
    }

    fn name(&self, image: &str) -> String {
        format!("127.0.0.1:{}/{image}:v1", self.port)
    }

    /// Offers an image of these layers, every other one compressed; answers the digests of the blobs.
    fn publish(&self, image: &str, layers: &[Vec<u8>]) -> Vec<Digest> {
        let mut content = self.content.lock().expect("no panic");
        content.retain(|path, _| !path.starts_with(&format!("{image}/")));
        let mut put = |path: String, media_type, bytes: &[u8]| {
            let digest = Digest::of(bytes);
            content.insert(format!("{image}/{path}/{digest}"), (media_type, Bytes::copy_from_slice(bytes)));
            digest
        };
        let mut digests = Vec::new();
        let mut described = Vec::new();
        for (at, tar) in layers.iter().enumerate() {
            let (blob, suffix) =
                if at % 2 == 0 && tar.len() < 1 << 20 { (tar.clone(), "") } else { (gzip(tar), "+gzip") };
            let digest = put("blobs".into(), LAYER, &blob);
            described.push(serde_json::json!({
                "mediaType": format!("{LAYER}{suffix}"), "digest": digest.as_str(), "size": blob.len(),
            }));
            digests.push(digest);
        }
        let diff_ids: Vec<String> = layers.iter().map(|tar| Digest::of(tar).to_string()).collect();
        let config = serde_json::json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        })
        .to_string();
        let config_digest = put("blobs".into(), CONFIG, config.as_bytes());
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": config_digest.as_str(), "size": config.len()},
            "layers": described,
        })
        .to_string();
        put("manifests".into(), MANIFEST, manifest.as_bytes());
        content.insert(format!("{image}/manifests/v1"), (MANIFEST, Bytes::from(manifest)));
        digests
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

async fn serve(State(content): State<Content>, UrlPath(path): UrlPath<String>) -> Response {
    match content.lock().expect("no panic").get(&path).cloned() {
        Some((media_type, bytes)) => ([(header::CONTENT_TYPE, media_type)], bytes).into_response(),
        None => (StatusCode::NOT_FOUND, r#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#).into_response(),
    }
}
