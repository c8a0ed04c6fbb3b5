//! A registry that checks who asks, and the store before it. Both do what the history says, at the worst moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;
use tokio::task::yield_now;

use crate::{
    credentials::{Credential, CredentialKind},
    error::{RuntimeError, RuntimeErrorKind},
    image::{ByteSize, Digest, Image, ImageId, ImageSpec, ImageUser, Reference},
    ports::{ImageFilesystems, ImageService, Listing, Progress, PullRequest},
    records::faults::Faults,
};

/// User and password.
pub(super) type Login = (String, String);

/// How the next pull ends that the registry allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// Nothing is stored.
    Fails,
    /// Stored, but the answer is lost.
    Unheard,
    /// It never ends; its caller gives up. What it fetched is in the store a moment later, or not.
    Hangs {
        stored: bool,
    },
    /// The process ends before the answer.
    Ends {
        stored: bool,
    },
}

#[derive(Debug, Default)]
pub(super) struct Shop {
    pub(super) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// `REPOSITORY:TAG` → content.
    tags: BTreeMap<String, usize>,
    /// Which contents a repository ever had; they stay there by digest.
    contents: BTreeSet<(String, usize)>,
    /// The logins that may pull from a repository; a repository without an entry is open to all.
    logins: BTreeMap<String, BTreeSet<Login>>,
    images: BTreeMap<ImageId, Image>,
    /// Images that are here because we pulled them.
    pub(super) brought: BTreeSet<ImageId>,
    /// What was allowed since the last look: the image's id, and with what.
    pub(super) allowed: Vec<(ImageId, Option<Login>)>,
    pub(super) fate: Option<Fate>,
    /// A pull has got as far as it will.
    pub(super) hangs: bool,
    /// What a pull without callers will have stored.
    late: Vec<(Reference, usize)>,
    pub(super) faults: Faults,
}

pub(super) fn id_of(content: usize) -> ImageId {
    ImageId::new(Digest::of(format!("config {content}").as_bytes()).as_str())
}

pub(super) fn digest_of(content: usize) -> Digest {
    Digest::of(format!("manifest {content}").as_bytes())
}

impl Shop {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds the shop")
    }
}

impl State {
    /// Puts a content under a tag.
    pub(super) fn push(&mut self, repository: &str, tag: &str, content: usize) {
        self.tags.insert(format!("{repository}:{tag}"), content);
        self.contents.insert((repository.to_owned(), content));
    }

    /// Permits these logins only; `None`: all.
    pub(super) fn set_logins(&mut self, repository: &str, logins: Option<BTreeSet<Login>>) {
        match logins {
            Some(logins) => self.logins.insert(repository.to_owned(), logins),
            None => self.logins.remove(repository),
        };
    }

    pub(super) fn accepts(&self, repository: &str, login: Option<&Login>) -> bool {
        self.logins.get(repository).is_none_or(|logins| login.is_some_and(|login| logins.contains(login)))
    }

    /// Puts an image into the store by hand, where it is not there by a pull.
    pub(super) fn load(&mut self, repository: &str, tag: &str) {
        if let Some(content) = self.tags.get(&format!("{repository}:{tag}")).copied()
            && !self.brought.contains(&id_of(content))
        {
            let name = format!("{repository}:{tag}").parse().expect("a reference");
            self.store(&name, content);
        }
    }

    pub(super) fn ids(&self) -> Vec<ImageId> {
        self.images.keys().cloned().collect()
    }

    pub(super) fn list(&self) -> Vec<Image> {
        self.images.values().cloned().collect()
    }

    pub(super) fn forget(&mut self, id: &ImageId) {
        self.images.remove(id);
        self.brought.remove(id);
    }

    /// What pulls have fetched that were given up comes in now.
    pub(super) fn settle_late(&mut self) {
        for (name, content) in std::mem::take(&mut self.late) {
            self.bring(&name, content);
        }
    }

    /// Stores what a pull has fetched. What was here before we pulled it is no secret.
    fn bring(&mut self, name: &Reference, content: usize) {
        if !self.images.contains_key(&id_of(content)) {
            self.brought.insert(id_of(content));
        }
        self.store(name, content);
    }

    fn store(&mut self, name: &Reference, content: usize) {
        let id = id_of(content);
        if name.digest().is_none() {
            for image in self.images.values_mut() {
                image.tags.retain(|tag| *tag != name.to_string());
            }
        }
        let image = self.images.entry(id.clone()).or_insert_with(|| Image {
            id,
            tags: Vec::new(),
            digests: Vec::new(),
            size: ByteSize(1),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
            artifact: None,
        });
        if name.digest().is_none() {
            image.tags.push(name.to_string());
        }
        let digest = format!("{}@{}", name.repository(), digest_of(content));
        if !image.digests.contains(&digest) {
            image.digests.push(digest);
        }
    }

    fn find(&self, text: &str) -> Option<&Image> {
        if let Some(image) = self.images.get(&ImageId::new(text)) {
            return Some(image);
        }
        let name = text.parse::<Reference>().ok()?.canonical().to_string();
        self.images.values().find(|image| image.tags.contains(&name) || image.digests.contains(&name))
    }

    /// What a name means in the registry.
    fn resolve(&self, name: &Reference) -> Option<usize> {
        match name.digest() {
            Some(digest) => {
                let named = self.contents.iter().filter(|(repository, _)| repository == name.repository());
                named.map(|(_, content)| *content).find(|content| digest_of(*content) == *digest)
            }
            None => self.tags.get(&name.to_string()).copied(),
        }
    }
}

fn login_of(credential: Option<&Credential>) -> Option<Login> {
    match &credential?.kind {
        CredentialKind::Basic { username, password } => Some((username.clone(), password.expose().to_owned())),
        _ => None,
    }
}

#[async_trait]
impl ImageService for Shop {
    async fn list(&self, _filter: Option<&ImageSpec>) -> Result<Listing, RuntimeError> {
        Ok(self.lock().list().into_iter().map(Arc::new).collect())
    }

    async fn status(&self, spec: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        Ok(self.lock().find(&spec.image).cloned())
    }

    async fn pull(&self, request: &PullRequest, _progress: Progress) -> Result<ImageId, RuntimeError> {
        // A parallel request gets as far as this.
        yield_now().await;
        let login = login_of(request.credential.as_ref());
        let (name, content, fate) = {
            let mut shop = self.lock();
            let name =
                request.image.image.parse::<Reference>().map_err(|error| RuntimeError::other(error.to_string()))?;
            let name = name.canonical();
            if !shop.accepts(name.repository(), login.as_ref()) {
                return Err(RuntimeError::new(RuntimeErrorKind::Denied, "denied"));
            }
            let Some(content) = shop.resolve(&name) else {
                return Err(RuntimeError::new(RuntimeErrorKind::NotFound, "no such image"));
            };
            let fate = shop.fate.take().unwrap_or(Fate::Answered);
            if fate != Fate::Fails {
                shop.allowed.push((id_of(content), login));
            }
            match fate {
                Fate::Hangs { stored } => {
                    shop.hangs = true;
                    if stored {
                        shop.late.push((name.clone(), content));
                    }
                }
                Fate::Ends { .. } => shop.faults.end(),
                _ => {}
            }
            (name, content, fate)
        };
        yield_now().await;
        if matches!(fate, Fate::Hangs { .. }) {
            std::future::pending::<()>().await;
        }
        if !matches!(fate, Fate::Fails | Fate::Ends { stored: false }) {
            self.lock().bring(&name, content);
        }
        yield_now().await;
        match fate {
            Fate::Answered | Fate::Ends { .. } => Ok(id_of(content)),
            Fate::Fails => Err(RuntimeError::other("it broke")),
            Fate::Unheard | Fate::Hangs { .. } => {
                Err(RuntimeError::new(RuntimeErrorKind::Unavailable, "the runtime went away"))
            }
        }
    }

    async fn remove(&self, spec: &ImageSpec) -> Result<(), RuntimeError> {
        let id = ImageId::new(&spec.image);
        self.lock().forget(&id);
        Ok(())
    }

    async fn filesystem(&self) -> Result<ImageFilesystems, RuntimeError> {
        Ok(ImageFilesystems::default())
    }
}

/// Shared with the manager.
pub(super) fn open_shop() -> Arc<Shop> {
    Arc::new(Shop::default())
}
