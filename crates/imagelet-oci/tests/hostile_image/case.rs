//! One bad image, what has to come of it, and everything that is looked at afterwards.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{Image as FileEntry, ImageId, ImageSpec},
    ports::{ImageDetails, ImageService as _, PullRequest, no_progress},
};
use imagelet_oci::{Engine, EngineConfig};

use super::{
    image::Image,
    registry::{Answer, Registry},
};

/// A look at what was pulled.
pub(crate) type Look = fn(&FileEntry, &ImageDetails);

/// The configuration as the store returns it.
pub(crate) fn config_of(details: &ImageDetails) -> serde_json::Value {
    serde_json::from_str(details.config.as_ref().expect("it has one").as_str()).expect("a configuration is JSON")
}

/// What has to come of a pull.
#[derive(Clone, Debug)]
enum Want {
    /// It fails with this kind, and its words hold these.
    Fails(RuntimeErrorKind, Vec<String>),
    /// It succeeds, exactly.
    Succeeds(Option<Look>),
}

/// One instance of a case of the catalogue.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    image: Image,
    /// Below `/v2/NAME/`, over what the image serves.
    answers: Vec<(String, Answer)>,
    /// Behind the repository; `:v1` unless told.
    suffix: String,
    /// No request may hold this.
    never_asked: Vec<String>,
    want: Want,
}

impl Case {
    /// `name` is the case's own: words that tell it from others of its id.
    pub(crate) fn new(id: &'static str, name: &'static str, image: Image) -> Self {
        let want = Want::Succeeds(None);
        Self { id, name, image, answers: Vec::new(), suffix: ":v1".into(), never_asked: Vec::new(), want }
    }

    /// A pull that fails: no kind but this, and each of these texts in its words.
    pub(crate) fn fails(self, kind: RuntimeErrorKind, words: &[&str]) -> Self {
        Self { want: Want::Fails(kind, words.iter().map(|&word| word.to_owned()).collect()), ..self }
    }

    /// A pull that succeeds, and what its image must look like.
    pub(crate) fn looks(self, look: Look) -> Self {
        Self { want: Want::Succeeds(Some(look)), ..self }
    }

    pub(crate) fn answering(mut self, path: &str, answer: Answer) -> Self {
        self.answers.push((path.to_owned(), answer));
        self
    }

    pub(crate) fn asked_as(self, suffix: &str) -> Self {
        Self { suffix: suffix.into(), ..self }
    }

    pub(crate) fn never_asks(mut self, text: &str) -> Self {
        self.never_asked.push(text.to_owned());
        self
    }

    fn repository(&self) -> String {
        let words: String =
            self.name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
        format!("{}-{}", self.id, words).to_ascii_lowercase().trim_matches('-').replace("--", "-").replace("--", "-")
    }
}

/// A store with one good image, and a registry.
pub(crate) struct Bench {
    pub(crate) registry: Registry,
    pub(crate) engine: Arc<Engine>,
    folder: tempfile::TempDir,
    kept: ImageId,
    goods: usize,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut EngineConfig)) -> Self {
        Self::on(scratch(), change).await
    }

    pub(crate) async fn on(folder: tempfile::TempDir, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let mut config = EngineConfig::new(folder.path().join("store"));
        config.limits.expansion_free = 4 << 20;
        config.limits.free_inodes_floor = 0;
        config.registry.timeouts.retry_budget = std::time::Duration::ZERO;
        change(&mut config);
        let engine = Engine::open(config).await.unwrap_or_else(|error| panic!("open: {}", error.chain()));
        let registry = Registry::start().await;
        let name = registry.put("kept", &Image::good("kept"));
        let kept = pull(&engine, &name).await.unwrap_or_else(|error| panic!("the good image: {}", error.chain()));
        Self { registry, engine, folder, kept, goods: 0 }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Pulls each image and holds the outcome to what is wanted; then that nothing else changed.
    pub(crate) async fn hold(&mut self, cases: Vec<Case>) {
        for case in cases {
            self.hold_one(case).await;
        }
    }

    async fn hold_one(&mut self, case: Case) {
        let what = format!("{} {}", case.id, case.name);
        let repository = case.repository();
        self.registry.put(&repository, &case.image);
        for (path, answer) in &case.answers {
            self.registry.answer(&format!("/v2/{repository}/{path}"), answer.clone());
        }
        let before = content(&self.root());
        self.registry.take_asked();
        let name = format!("{}/{repository}{}", self.registry.host(), case.suffix);
        let outcome = tokio::time::timeout(Duration::from_mins(1), pull(&self.engine, &name)).await;
        let outcome = outcome.unwrap_or_else(|_| panic!("{what}: it hangs"));
        let asked = self.registry.take_asked();
        for request in &asked {
            let own = format!("/v2/{repository}/");
            assert!(request.path.starts_with(&own), "{what}: asked for `{}`", request.path);
            assert!(!request.with_credential, "{what}: a credential went to `{}`", request.path);
            for text in &case.never_asked {
                assert!(!request.path.contains(text), "{what}: asked for `{}`", request.path);
            }
        }
        match (&case.want, outcome) {
            (Want::Fails(kind, words), Err(error)) => {
                let told = format!("{} hint: {}", error.chain(), error.hint().unwrap_or("-"));
                assert_eq!(error.kind(), *kind, "{what}: {told}");
                let reference = format!("{}/{repository}", self.registry.host());
                for word in words.iter().map(String::as_str).chain([reference.as_str()]) {
                    assert!(told.contains(word), "{what}: `{word}` is not told: {told}");
                }
                assert!(told.len() < 2048, "{what}: the message is as long as its input");
                assert!(!told.chars().any(char::is_control), "{what}: {told:?}");
                assert!(self.status(&name).await.is_none(), "{what}: it is there after a failure");
                assert_eq!(settled(&self.root(), &before).await, before, "{what}: something is left behind");
            }
            (Want::Succeeds(look), Ok(id)) => self.hold_image(&what, &case.image, &name, &id, *look).await,
            (Want::Fails(..), Ok(id)) => panic!("{what}: it was pulled, as {id}"),
            (Want::Succeeds(_), Err(error)) => panic!("{what}: {}", error.chain()),
        }
        self.still_pulls(&what).await;
        assert_eq!(settled(&self.root(), &before).await, before, "{what}: something is left in the end");
    }

    /// The image is there to the byte; then it goes.
    async fn hold_image(&self, what: &str, image: &Image, name: &str, id: &ImageId, look: Option<Look>) {
        assert_eq!(id.as_str(), image.config_digest(), "{what}: another image");
        let listed = self.status(name).await.unwrap_or_else(|| panic!("{what}: it is not there"));
        let details = self
            .engine
            .details(&ImageSpec::new(name))
            .await
            .unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
        let details = details.unwrap_or_else(|| panic!("{what}: it has no details"));
        for layer in &image.layers {
            let hex = layer.diff_id.split_once(':').expect("a digest").1;
            let files = files(&self.root().join("layers").join(hex).join("fs"));
            assert_eq!(files, layer.files, "{what}: the layer's files");
        }
        if let Some(look) = look {
            look(&listed, &details);
        }
        self.engine.remove(&ImageSpec::new(name)).await.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
    }

    /// The service lives: the old image is listed alone, and a new one can be had.
    async fn still_pulls(&mut self, what: &str) {
        let listed = self.engine.list(None).await.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
        assert_eq!(listed.iter().map(|image| &image.id).collect::<Vec<_>>(), [&self.kept], "{what}: what is listed");
        self.goods += 1;
        let mark = format!("good-{}", self.goods);
        let name = self.registry.put(&mark, &Image::good(&mark));
        pull(&self.engine, &name)
            .await
            .unwrap_or_else(|error| panic!("{what}: a good image after it: {}", error.chain()));
        self.engine.remove(&ImageSpec::new(&name)).await.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
    }

    pub(crate) async fn status(&self, name: &str) -> Option<FileEntry> {
        match self.engine.status(&ImageSpec::new(name)).await {
            Ok(status) => status,
            // What is no name has no image.
            Err(error) if error.kind() == RuntimeErrorKind::InvalidArgument => None,
            Err(error) => panic!("status: {}", error.chain()),
        }
    }
}

pub(crate) async fn pull(engine: &Engine, name: &str) -> Result<ImageId, RuntimeError> {
    engine.pull(&PullRequest { image: ImageSpec::new(name), ..PullRequest::default() }, no_progress()).await
}

/// A folder on the memory file system where there is one: each commit syncs its whole file system.
pub(crate) fn scratch() -> tempfile::TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("imagelet-hostile-");
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { builder.tempdir_in(memory) } else { builder.tempdir() }.expect("a folder")
}

/// A folder on a disk, whose pages the kernel can write out and take back.
pub(crate) fn scratch_on_disk() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("imagelet-hostile-").tempdir_in("/var/tmp").expect("a folder")
}

/// What lies in the folders of a store, one level deep.
pub(crate) fn content(root: &Path) -> BTreeSet<String> {
    ["tmp", "trash", "layers", "images", "mounts", "ingest", "blobs/sha256"]
        .into_iter()
        .flat_map(|folder| {
            // Only a store that keeps blobs has folders of blobs.
            let entries = std::fs::read_dir(root.join(folder)).into_iter().flatten();
            entries.map(move |entry| format!("{folder}/{}", entry.expect("an entry").file_name().display()))
        })
        .collect()
}

/// The same once the threads of a pull that failed have ended, or after five seconds.
pub(crate) async fn settled(root: &Path, wanted: &BTreeSet<String>) -> BTreeSet<String> {
    for _ in 0..250 {
        if content(root) == *wanted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    content(root)
}

/// Path and bytes of every file below a folder.
pub(crate) fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root).expect("below it").display().to_string();
                found.insert(name, std::fs::read(&path).expect("a file"));
            }
        }
    }
    found
}
