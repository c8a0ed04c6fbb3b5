//! Who has no right gets no image, whatever happened before: random histories over the real manager and real files.
//!
//! The test keeps its own book of who proved what to the registry. **Invariant:** an image that one of our pulls has
//! brought is handed out as present only to a pod that shows a proof which was given for this image under this name,
//! and as pulled only to a pod that the registry let in by its own right.

mod seen;
mod shop;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use seen::Seen;
use shop::{Fate, Login, Shop, digest_of, open_shop};

use super::super::*;
use crate::{
    credentials::{
        Credential, CredentialProvider, CredentialQuery, CredentialSource, Keyring, NodeKeyring, ObjectIdentity,
        Provided, PullSecret, PullSecretKind, Secret, TrackedCredential,
    },
    error::ErrorClass,
    events::PodIdentity,
    image::{ImageId, trim_tag_and_digest},
    ports::{ImageService, NoContainers, RuntimeManager, unwatched},
    records::{Absent, PullRecords, RecordsSettings, VerificationPolicy, faults::Faults},
    testing::dice::Dice,
};

/// How long the histories are together.
const STEPS: usize = 100_000;
/// How many there are; each begins with an empty node.
const HISTORIES: usize = 50;
/// Another one may be given by this variable, as it is printed by a failure.
const SEED: u64 = 0x6a09_e667_f3bc_c908;

const PRIVATE: &str = "reg.io/team/app";
const SHORT: &str = "docker.io/library/tool";
const OTHER: &str = "reg.io/other/app";
const OPEN: &str = "reg.io/open/app";
const REPOSITORIES: [&str; 4] = [PRIVATE, SHORT, OTHER, OPEN];
const TAGS: [&str; 3] = ["latest", "v1", "v2"];
const CONTENTS: usize = 6;
const LOGINS: usize = 5;
const SECRETS: usize = 8;

fn login(number: usize) -> Login {
    (format!("user{}", number % 3), format!("password{number}"))
}

fn credential((user, password): &Login) -> Credential {
    Credential::basic("", user.clone(), Secret::new(password.clone()))
}

/// What proves a right: the book's words, not the records'.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Proof {
    Open,
    Secret(usize),
    Content(Login),
    Account(String),
}

/// One pod's own credentials, in the order in which they are tried.
#[derive(Clone, Debug)]
struct Pod {
    namespace: usize,
    secrets: Vec<usize>,
    account: Option<String>,
}

/// The node's keys of service accounts: each account has its own login.
#[derive(Debug)]
struct Accounts(Arc<Mutex<BTreeMap<String, Login>>>);

#[async_trait]
impl CredentialProvider for Accounts {
    async fn provide(&self, query: &CredentialQuery) -> Provided {
        let Some(name) = query.service_account.as_ref().filter(|_| query.repository != SHORT) else {
            return Provided::default();
        };
        let Some(login) = self.0.lock().unwrap().get(name).cloned() else { return Provided::default() };
        let mut keyring = Keyring::new();
        let identity = account_identity(name);
        keyring.add_credential("reg.io", CredentialSource::ServiceAccount(identity), credential(&login));
        let credentials: Vec<TrackedCredential> = keyring.lookup(&query.repository);
        Provided { credentials, failures: Vec::new() }
    }
}

fn account_identity(name: &str) -> ObjectIdentity {
    ObjectIdentity { uid: format!("uid-{name}"), namespace: "accounts".into(), name: name.to_owned() }
}

struct World {
    dice: Dice,
    root: tempfile::TempDir,
    shop: Arc<Shop>,
    faults: Faults,
    manager: Arc<ImageManager>,
    records: Arc<PullRecords>,
    node: BTreeMap<&'static str, Login>,
    /// What the secrets hold now.
    secrets: Vec<Login>,
    accounts: Arc<Mutex<BTreeMap<String, Login>>>,
    /// Who proved what: image and name without tag → proofs. Nothing is ever taken back, as records do not expire.
    book: BTreeMap<(ImageId, String), BTreeSet<Proof>>,
    seen: Seen,
    log: Vec<String>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let last = self.log.len().saturating_sub(200);
            println!("{}, the last of {} steps:\n{}", self.log[0], self.log.len(), self.log[last..].join("\n"));
        }
    }
}

/// A disk without wear where there is one.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.or_else(|_| tempfile::tempdir()).unwrap()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let root = folder();
        let shop = open_shop();
        let secrets: Vec<Login> = (0..SECRETS).map(|_| login(dice.below(LOGINS))).collect();
        let mut accounts = BTreeMap::new();
        for name in ["builder", "runner"] {
            accounts.insert(name.to_owned(), login(dice.below(LOGINS)));
        }
        let accounts = Arc::new(Mutex::new(accounts));
        let node = if dice.one_in(3) { BTreeMap::from([(OTHER, login(0))]) } else { BTreeMap::new() };
        let (faults, records, manager) = start(root.path(), &shop, &accounts, &node);
        let mut world = Self {
            dice,
            root,
            shop,
            faults,
            manager,
            records,
            node,
            secrets,
            accounts,
            book: BTreeMap::new(),
            seen: Seen::default(),
            log: Vec::new(),
        };
        world.note(format!("seed {seed}"));
        for repository in REPOSITORIES {
            for tag in TAGS {
                let content = world.dice.below(CONTENTS);
                world.shop.lock().push(repository, tag, content);
            }
            world.regrant(repository);
        }
        world
    }

    async fn step(&mut self) {
        match self.dice.below(100) {
            0..55 => self.ensure_one().await,
            55..63 => Box::pin(self.ensure_two()).await,
            63..67 => self.give_up().await,
            67..72 => {
                let (repository, tag) = (*self.dice.pick(&REPOSITORIES), *self.dice.pick(&TAGS));
                let content = self.dice.below(CONTENTS);
                self.note(format!("push {repository}:{tag} is {content}"));
                self.shop.lock().push(repository, tag, content);
            }
            72..75 => {
                let repository = *self.dice.pick(&REPOSITORIES);
                self.regrant(repository);
            }
            75..79 => {
                let (secret, login) = (self.dice.below(SECRETS), login(self.dice.below(LOGINS)));
                self.note(format!("secret {secret} holds {login:?}"));
                self.secrets[secret] = login;
            }
            79..80 => {
                let name = if self.dice.one_in(2) { "builder" } else { "runner" };
                let login = login(self.dice.below(LOGINS));
                self.note(format!("account {name} has {login:?}"));
                self.accounts.lock().unwrap().insert(name.to_owned(), login);
            }
            80..84 => {
                let (repository, tag) = (*self.dice.pick(&REPOSITORIES), *self.dice.pick(&TAGS));
                self.note(format!("load {repository}:{tag} by hand"));
                self.shop.lock().load(repository, tag);
            }
            84..87 => self.remove_one(),
            87..91 => self.collect().await,
            91..95 => self.ensure_one().await,
            95..98 => self.shop.lock().settle_late(),
            _ => self.restart(),
        }
        if self.faults.has_ended() {
            self.restart();
        }
        self.faults.fail_in(0);
        self.faults.end_in(0);
    }

    fn note(&mut self, line: String) {
        self.log.push(line);
    }

    fn regrant(&mut self, repository: &'static str) {
        let logins = (repository != OPEN)
            .then(|| (0..LOGINS).filter(|_| self.dice.one_in(2)).map(login).collect::<BTreeSet<Login>>());
        self.note(format!("{repository} lets in {logins:?}"));
        self.shop.lock().set_logins(repository, logins);
    }

    fn remove_one(&mut self) {
        let ids = self.shop.lock().ids();
        if !ids.is_empty() {
            let id = self.dice.pick(&ids).clone();
            self.note(format!("remove {} by hand", id.short()));
            self.shop.lock().forget(&id);
        }
    }

    /// The process ends, and another begins on what the disk has.
    fn restart(&mut self) {
        self.faults.end();
        self.shop.lock().settle_late();
        self.shop.lock().fate = None;
        (self.faults, self.records, self.manager) = start(self.root.path(), &self.shop, &self.accounts, &self.node);
        // A runtime that does not answer in time leaves the cut-off pulls to a later look.
        let recovers = !self.dice.one_in(4);
        self.note(format!("restart, recovers: {recovers}"));
        if recovers {
            let (images, mark) = (self.shop.lock().list(), self.records.mark(SystemTime::now()));
            self.records.resolve_open_intents(&images, SystemTime::now(), Absent::Stays).unwrap();
            self.records.remember_preloaded(&images, &mark).unwrap();
        }
        self.seen.ends += 1;
    }

    /// As the program does: a mark, removals, what is present, and, in between, whatever comes between.
    async fn collect(&mut self) {
        // Minutes apart; what was given up is in the store by then, if it ever is.
        self.shop.lock().settle_late();
        let mark = self.records.mark(SystemTime::now() + Duration::from_secs(self.dice.below(3) as u64));
        let _ = self.records.remember_preloaded(&self.shop.lock().list(), &mark);
        for _ in 0..self.dice.below(3) {
            self.remove_one();
        }
        let present: BTreeSet<ImageId> = self.shop.lock().ids().into_iter().collect();
        for _ in 0..self.dice.below(3) {
            self.ensure_one().await;
        }
        self.note(format!("prune, present: {:?}", present.iter().map(ImageId::short).collect::<Vec<_>>()));
        let (pruned, _) = self.records.prune(&present, &mark);
        self.seen.pruned += pruned;
        let images = self.shop.lock().list();
        let _ = self.records.resolve_open_intents(&images, SystemTime::now(), Absent::RemovedAfterChecks);
    }

    /// Lets the next pull end badly, the disk fail, or the process end, now and then.
    fn invite_trouble(&mut self) {
        let stored = self.dice.one_in(2);
        let fate = match self.dice.below(30) {
            0 => Some(Fate::Fails),
            1 => Some(Fate::Unheard),
            2 => Some(Fate::Ends { stored }),
            _ => None,
        };
        self.shop.lock().fate = fate;
        match self.dice.below(12) {
            0 => {
                let change = 1 + self.dice.below(8);
                self.faults.fail_in(change);
            }
            1 => self.faults.end_in(1 + self.dice.below(8)),
            _ => {}
        }
    }

    fn pod(&mut self) -> Pod {
        let secrets = (0..self.dice.below(3)).map(|_| self.dice.below(SECRETS)).collect();
        let account = match self.dice.below(8) {
            0 => Some("builder".to_owned()),
            1 => Some("runner".to_owned()),
            _ => None,
        };
        Pod { namespace: self.dice.below(3), secrets, account }
    }

    fn spelling(&mut self) -> String {
        let names: &[&str] = match self.dice.below(10) {
            0..5 => &[PRIVATE],
            5..7 => &["tool", "library/tool", "docker.io/tool", "index.docker.io/library/tool", SHORT],
            7..9 => &[OTHER],
            _ => &[OPEN],
        };
        let name = *self.dice.pick(names);
        let content = self.dice.below(CONTENTS);
        match self.dice.below(8) {
            0 => name.to_owned(),
            1 => format!("{name}@{}", digest_of(content)),
            2 => format!("{name}:v1@{}", digest_of(content)),
            3 => shop::id_of(content).to_string(),
            _ => format!("{name}:{}", self.dice.pick(&TAGS)),
        }
    }

    fn request(&mut self, pod: &Pod, image: &str) -> EnsureRequest {
        let policy = match self.dice.below(10) {
            0..2 => PullPolicy::Always,
            2..4 => PullPolicy::Never,
            _ => PullPolicy::IfNotPresent,
        };
        let secrets = pod.secrets.iter().map(|secret| {
            let (user, password) = &self.secrets[*secret];
            let login = serde_json::json!({"username": user, "password": password});
            PullSecret {
                identity: ObjectIdentity {
                    uid: format!("uid-{secret}"),
                    namespace: format!("namespace-{}", secret % 3),
                    name: format!("secret-{}", secret / 3),
                },
                kind: PullSecretKind::DockerConfigJson,
                document: Secret::new(serde_json::json!({"auths": {"reg.io": login, "docker.io": login}}).to_string()),
            }
        });
        let uid: Arc<str> = format!("{pod:?}").into();
        let mut request = EnsureRequest::new(image, policy);
        request.pull.pod = PodIdentity { namespace: format!("n{}", pod.namespace).into(), name: "pod".into(), uid };
        EnsureRequest { service_account: pod.account.clone(), secrets: secrets.collect(), ..request }
    }

    /// What a pod shows a repository, in order, and whose each is.
    fn shown(&self, pod: &Pod, repository: &str) -> Vec<(Login, Vec<Proof>)> {
        let mut shown = Vec::new();
        for secret in &pod.secrets {
            let login = self.secrets[*secret].clone();
            shown.push((login.clone(), vec![Proof::Secret(*secret), Proof::Content(login)]));
        }
        if let Some(login) = self.node.get(repository) {
            shown.push((login.clone(), vec![Proof::Open]));
        }
        if let Some(name) = pod.account.as_ref().filter(|_| repository.starts_with("reg.io")) {
            let login = self.accounts.lock().unwrap()[name].clone();
            shown.push((login, vec![Proof::Account(name.clone())]));
        }
        shown
    }

    /// Records that the registry accepted this, for a pod that has it: by any that holds it, as a first try
    /// may have broken off.
    fn enter_proof(&mut self, pod: &Pod, image: &str, id: &ImageId, used: Option<&Login>) {
        let Some((repository, key)) = names(image) else { return };
        let shown = self.shown(pod, &repository);
        let proofs = if shown.is_empty() && used.is_none() {
            vec![Proof::Open]
        } else {
            shown.into_iter().filter(|(login, _)| Some(login) == used).flat_map(|(_, proofs)| proofs).collect()
        };
        self.book.entry((id.clone(), key)).or_default().extend(proofs);
    }

    fn has_own_right(&self, pod: &Pod, image: &str) -> bool {
        let Some((repository, _)) = names(image) else { return false };
        let shown = self.shown(pod, &repository);
        let shop = self.shop.lock();
        shop.accepts(&repository, None) || shown.iter().any(|(login, _)| shop.accepts(&repository, Some(login)))
    }

    /// Whether a pod shows what was proved; what matches by its other half proves as much from then on.
    fn shows_proof(&mut self, pod: &Pod, image: &str, id: &ImageId) -> bool {
        let Some((repository, key)) = names(image) else { return false };
        let shown = self.shown(pod, &repository);
        let Some(proofs) = self.book.get_mut(&(id.clone(), key)) else { return false };
        if proofs.contains(&Proof::Open) {
            return true;
        }
        let mut matched = false;
        for (_, own) in shown {
            if !own.contains(&Proof::Open) && own.iter().any(|proof| proofs.contains(proof)) {
                proofs.extend(own);
                matched = true;
            }
        }
        matched
    }

    fn judge(&mut self, pod: &Pod, request: &EnsureRequest, ensured: &Result<Ensured, EnsureError>) {
        let image = request.image().to_owned();
        match ensured {
            Ok(Ensured { id, origin: Origin::AlreadyPresent | Origin::Stale { .. }, .. }) => {
                let is_brought = self.shop.lock().brought.contains(id);
                let shows = self.shows_proof(pod, &image, id);
                if !shows && is_brought {
                    let shown = names(&image).map(|(repository, _)| self.shown(pod, &repository));
                    let proved = self.book.iter().filter(|((known, _), _)| known == id).collect::<Vec<_>>();
                    let record = self.records.record(id);
                    panic!("{pod:?} was let in to {image} ({id:?}): shows {shown:?}, proved {proved:?}, {record:?}");
                }
                self.seen.used += usize::from(is_brought);
                self.seen.used_preloaded += usize::from(!is_brought && !shows);
            }
            Ok(Ensured { origin: Origin::Pulled { .. }, .. }) => {
                assert!(self.has_own_right(pod, &image), "{pod:?} shares the pull of another pod of {image}");
                self.seen.pulled += 1;
            }
            Err(error) if error.class() == ErrorClass::NotPresent => self.seen.never += 1,
            Err(_) => self.seen.refused += 1,
        }
    }

    /// Enters in the book what the registry allowed since the last look to those who asked for this image.
    fn enter_allowed(&mut self, pods: &[Pod], image: &str) {
        let allowed = std::mem::take(&mut self.shop.lock().allowed);
        for (id, used) in allowed {
            for pod in pods {
                self.enter_proof(pod, image, &id, used.as_ref());
            }
        }
    }

    async fn ensure_one(&mut self) {
        let (pod, image) = (self.pod(), self.spelling());
        let request = self.request(&pod, &image);
        self.invite_trouble();
        let ensured = self.manager.ensure(&request, unwatched()).await;
        self.note(format!("{pod:?} wants {image} {}: {}", request.policy, reported(&ensured)));
        self.enter_allowed(std::slice::from_ref(&pod), &image);
        let is_untroubled = !self.faults.has_ended() && !self.faults.has_failed();
        self.seen.write_failures += usize::from(self.faults.has_failed());
        self.judge(&pod, &request, &ensured);
        self.shop.lock().fate = None;
        // A pod that the registry accepted is accepted again with the same credentials.
        if let Ok(Ensured { id, origin: Origin::Pulled { .. }, .. }) = &ensured
            && is_untroubled
            && self.dice.one_in(4)
        {
            self.faults.end_in(0);
            let request = EnsureRequest { policy: PullPolicy::Never, ..request };
            let again = self.manager.ensure(&request, unwatched()).await;
            assert!(again.is_ok_and(|again| again.id == *id), "{pod:?} is kept out of {image}");
        }
    }

    /// Two pods want the same at the same moment.
    async fn ensure_two(&mut self) {
        let image = self.spelling();
        let pods = [self.pod(), self.pod()];
        let requests = [self.request(&pods[0], &image), self.request(&pods[1], &image)];
        self.invite_trouble();
        let manager = Arc::clone(&self.manager);
        let (first, second) =
            tokio::join!(manager.ensure(&requests[0], unwatched()), manager.ensure(&requests[1], unwatched()));
        self.note(format!("{pods:?} want {image}: {}, {}", reported(&first), reported(&second)));
        // Each is entered for what its own would have opened; who has nothing that opens gets nothing by the other.
        self.enter_allowed(&pods, &image);
        for ((pod, request), ensured) in pods.iter().zip(&requests).zip([&first, &second]) {
            self.judge(pod, request, ensured);
        }
        self.shop.lock().fate = None;
        self.seen.together += 1;
    }

    /// A pod goes away while its image is pulled.
    async fn give_up(&mut self) {
        let (pod, image) = (self.pod(), self.spelling());
        let request = EnsureRequest { policy: PullPolicy::Always, ..self.request(&pod, &image) };
        let stored = self.dice.one_in(2);
        self.shop.lock().fate = Some(Fate::Hangs { stored });
        let manager = Arc::clone(&self.manager);
        // Before its intent is written, or in the middle of the pull.
        let goes_early = self.dice.one_in(3);
        let ensured = {
            let mut ensuring = pin!(manager.ensure(&request, unwatched()));
            let goes = async {
                while !goes_early && !self.shop.lock().hangs {
                    tokio::task::yield_now().await;
                }
            };
            let mut goes = pin!(goes);
            std::future::poll_fn(|context| match ensuring.as_mut().poll(context) {
                Poll::Ready(ensured) => Poll::Ready(Some(ensured)),
                Poll::Pending => goes.as_mut().poll(context).map(|()| None),
            })
            .await
        };
        self.note(format!("{pod:?} wants {image} and goes: {}", ensured.as_ref().map_or_else(|| "-".into(), reported)));
        self.enter_allowed(std::slice::from_ref(&pod), &image);
        if let Some(ensured) = ensured {
            self.judge(&pod, &request, &ensured);
        }
        self.shop.lock().fate = None;
        self.shop.lock().hangs = false;
        if self.dice.one_in(2) {
            self.shop.lock().settle_late();
        }
        self.seen.given_up += 1;
    }
}

fn reported(ensured: &Result<Ensured, EnsureError>) -> String {
    match ensured {
        Ok(ensured) => format!("{} {:?}", ensured.id.short(), matches!(ensured.origin, Origin::AlreadyPresent)),
        Err(error) => error.message(),
    }
}

/// The repository that is asked, and the name that a right is for.
fn names(image: &str) -> Option<(String, String)> {
    let repository = image.parse::<crate::image::Reference>().ok()?.repository().to_owned();
    Some((repository, trim_tag_and_digest(image).ok()?.to_owned()))
}

fn start(
    root: &Path,
    shop: &Arc<Shop>,
    accounts: &Arc<Mutex<BTreeMap<String, Login>>>,
    node: &BTreeMap<&'static str, Login>,
) -> (Faults, Arc<PullRecords>, Arc<ImageManager>) {
    let faults = Faults::new();
    let settings = RecordsSettings::new(VerificationPolicy::NeverVerifyPreloadedImages);
    let records = Arc::new(PullRecords::open_on(Arc::new(faults.clone()), root, settings, false).unwrap());
    shop.lock().faults = faults.clone();
    let mut keyring = Keyring::new();
    for (repository, login) in node {
        keyring.add_credential(repository, CredentialSource::Node, credential(login));
    }
    let runtime = RuntimeManager::new(Arc::clone(shop) as Arc<dyn ImageService>, Arc::new(NoContainers));
    let settings =
        PullSettings { backoff_first: Duration::ZERO, backoff_max: Duration::ZERO, ..PullSettings::default() };
    let manager = ImageManager::new(ManagerParts {
        settings,
        keyring: Arc::new(NodeKeyring::fixed(keyring)),
        providers: Arc::new(Accounts(Arc::clone(accounts))),
        ..ManagerParts::new(runtime, Arc::clone(&records))
    });
    (faults, records, Arc::new(manager))
}

#[test]
fn no_history_lets_a_pod_use_what_it_has_no_right_to() {
    let seed = std::env::var_os("IMAGELET_RIGHTS_SEED").and_then(|seed| seed.to_str()?.parse().ok()).unwrap_or(SEED);
    println!("seed {seed}");
    let live = |histories: std::ops::Range<usize>| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut seen = Seen::default();
        for history in histories {
            let mut world = World::new(seed.wrapping_add(history as u64));
            runtime.block_on(async {
                for _ in 0..STEPS / HISTORIES {
                    Box::pin(world.step()).await;
                }
            });
            seen.add(&world.seen);
        }
        seen
    };
    let mut all = live(0..1);
    std::thread::scope(|scope| {
        let half = scope.spawn(|| live(1..HISTORIES / 2));
        all.add(&live(HISTORIES / 2..HISTORIES));
        all.add(&half.join().expect("the other half holds as well"));
    });
    println!("{all:?}");
    assert!(all.numbers().into_iter().all(|seen| seen > STEPS / 1000), "a kind of step was hardly seen: {all:?}");
}
