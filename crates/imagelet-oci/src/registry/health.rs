//! The health of registry hosts, shared by all pulls and saved for the next process (`docs/spec/pull.md §13.4`).

use std::{
    collections::HashMap,
    io::Read as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use imagelet_core::{
    durable::replace_file_unsynced,
    error::{ErrorClass, Fault, Party},
    retry_wait::grown,
};
use serde::{Deserialize, Serialize};
use tokio::{task::JoinSet, time::Instant};

use super::{
    connection::{Origin, Target},
    locked,
};

const PROBE_FIRST: Duration = Duration::from_secs(10);
const PROBE_MAX: Duration = Duration::from_mins(5);
const HOSTS_MAX: usize = 256;
const FILE_BYTES_MAX: u64 = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    Host,
    /// The host gives no answer or a server error for the repository. Other repositories may work.
    Repository,
    Redirect,
}

/// What a failure proves to be bad. `None` if it proves nothing about the host.
pub(crate) fn proof(fault: &Fault) -> Option<Bad> {
    let is_lost = fault.class == ErrorClass::ConnectionLost;
    if !is_lost && !fault.is_unreached() && !matches!(fault.class, ErrorClass::RegistryFailed | ErrorClass::TimedOut) {
        return None;
    }
    Some(match fault.party {
        Party::RedirectTarget => Bad::Redirect,
        Party::Registry if fault.is_unreached() => Bad::Host,
        Party::Registry | Party::TokenService => Bad::Repository,
    })
}

/// A host and a repository, or `None` for all repositories of the host.
type HealthKey = (Origin, Option<String>);

fn keys(origin: &Origin, repository: &str) -> [HealthKey; 2] {
    [(origin.clone(), None), (origin.clone(), Some(repository.to_owned()))]
}

#[derive(Default)]
pub(crate) struct HostsHealth {
    table: Mutex<Table>,
    /// The running probes. They are cancelled when this value is dropped.
    probes: Mutex<JoinSet<()>>,
    file: Option<PathBuf>,
}

impl HostsHealth {
    /// Reads the health that an earlier process saved. A damaged file is ignored.
    pub(crate) fn load(file: Option<PathBuf>) -> Self {
        let bytes = file.as_deref().map(read).unwrap_or_default();
        let table = Table::decode(&bytes, Instant::now(), SystemTime::now());
        Self { table: Mutex::new(table), probes: Mutex::default(), file }
    }

    pub(crate) fn is_bad(&self, origin: &Origin, repository: &str) -> bool {
        let table = locked(&self.table);
        keys(origin, repository).iter().any(|key| table.is_bad(key))
    }

    pub(crate) fn failed(&self, origin: &Origin, repository: &str, bad: Bad, began: Instant) {
        let mut table = locked(&self.table);
        if table.failed_with(origin, repository, bad, began, Instant::now()) {
            tracing::debug!(host = %origin, ?bad, "a registry host failed; it is tried last until it answers again");
            self.save(&table);
        }
    }

    pub(crate) fn succeeded(&self, origin: &Origin, repository: &str, began: Instant) {
        let mut table = locked(&self.table);
        table.forget_evidence(origin, began);
        if keys(origin, repository).map(|key| table.succeeded(&key, began)).contains(&true) {
            tracing::debug!(host = %origin, "a registry host works again");
            self.save(&table);
        }
    }

    pub(crate) fn probe_if_due<F>(self: &Arc<Self>, origin: &Origin, repository: &str, probe: impl Fn() -> F)
    where
        F: Future<Output = bool> + Send + 'static,
    {
        for key in keys(origin, repository) {
            if !locked(&self.table).take_probe(&key, Instant::now()) {
                continue;
            }
            let (answered, health) = (probe(), Arc::downgrade(self));
            let mut probes = locked(&self.probes);
            while probes.try_join_next().is_some() {}
            probes.spawn(async move {
                if answered.await
                    && let Some(health) = health.upgrade()
                {
                    locked(&health.table).answered(&key);
                }
            });
        }
    }

    /// Saves the table. A failed write is only logged, and the file is not synced, because pulls work without the file.
    /// The caller locks the table during the write, so that an older table does not replace a newer one.
    fn save(&self, table: &Table) {
        let Some(file) = &self.file else { return };
        let bytes = table.encode(Instant::now(), SystemTime::now());
        if let Err(error) = replace_file_unsynced(file, &file.with_extension("tmp"), &bytes) {
            tracing::debug!(file = %file.display(), %error, "could not keep the health of registry hosts");
        }
    }
}

#[derive(Default)]
struct Table {
    hosts: HashMap<HealthKey, HostHealth>,
}

#[derive(Clone, Copy)]
struct HostHealth {
    strikes: u32,
    marked: Instant,
    probe_at: Instant,
    /// Whether the host answered a probe. Then it has its usual turn again, and the next request to it decides.
    on_trial: bool,
    /// Whether the host has served nothing since the failure, which then is evidence against all its repositories.
    is_evidence: bool,
}

impl Table {
    fn is_bad(&self, key: &HealthKey) -> bool {
        self.hosts.get(key).is_some_and(|host| !host.on_trial)
    }

    /// Records a failure, and returns whether the table changed. If two repositories of a host fail, the host is bad.
    fn failed_with(&mut self, origin: &Origin, repository: &str, bad: Bad, began: Instant, now: Instant) -> bool {
        let [host, own] = keys(origin, repository);
        if bad == Bad::Host {
            return self.failed(&host, began, now);
        }
        let fails_too = |(key, host): (&HealthKey, &HostHealth)| {
            key.0 == *origin && key.1.is_some() && *key != own && host.is_evidence && !host.on_trial
        };
        let is_general = bad == Bad::Repository && self.hosts.iter().any(fails_too);
        let changed = self.failed(&own, began, now);
        if let Some(marked) = self.hosts.get_mut(&own) {
            marked.is_evidence = bad == Bad::Repository;
        }
        (is_general && self.failed(&host, began, now)) || changed
    }

    /// Records a failure, and returns whether the table changed. A request from before the last failure does not count.
    fn failed(&mut self, key: &HealthKey, began: Instant, now: Instant) -> bool {
        let strikes = match self.hosts.get(key).copied() {
            Some(host) if began < host.marked => return false,
            Some(host) => host.strikes.saturating_add(1),
            None if self.hosts.len() >= HOSTS_MAX && !self.forget_a_repository() => return false,
            None => 1,
        };
        let probe_at = now + probe_wait(strikes);
        let host = HostHealth { strikes, marked: now, probe_at, on_trial: false, is_evidence: true };
        self.hosts.insert(key.clone(), host);
        true
    }

    /// Removes the oldest entry of a repository, if there is one. Entries of whole hosts stay.
    fn forget_a_repository(&mut self) -> bool {
        let repositories = self.hosts.iter().filter(|(key, _)| key.1.is_some());
        let oldest = repositories.min_by_key(|(_, host)| host.marked).map(|(key, _)| key.clone());
        oldest.is_some_and(|key| self.hosts.remove(&key).is_some())
    }

    fn succeeded(&mut self, key: &HealthKey, began: Instant) -> bool {
        let is_news = self.hosts.get(key).is_some_and(|host| began >= host.marked);
        is_news && self.hosts.remove(key).is_some()
    }

    fn forget_evidence(&mut self, origin: &Origin, began: Instant) {
        let of_host = self.hosts.iter_mut().filter(|(key, host)| key.0 == *origin && began >= host.marked);
        of_host.for_each(|(_, host)| host.is_evidence = false);
    }

    /// Whether a probe is due. If so, the caller sends it, and the time of the next probe is set.
    fn take_probe(&mut self, key: &HealthKey, now: Instant) -> bool {
        let Some(host) = self.hosts.get_mut(key).filter(|host| !host.on_trial && now >= host.probe_at) else {
            return false;
        };
        host.probe_at = now + probe_wait(host.strikes);
        true
    }

    fn answered(&mut self, key: &HealthKey) {
        if let Some(host) = self.hosts.get_mut(key) {
            host.on_trial = true;
        }
    }

    fn encode(&self, now: Instant, clock: SystemTime) -> Vec<u8> {
        let line = |((origin, repository), host): (&HealthKey, &HostHealth)| HealthLine {
            origin: origin.to_string(),
            repository: repository.clone(),
            strikes: host.strikes,
            probe_at: unix(clock + host.probe_at.saturating_duration_since(now)),
        };
        let lines: Vec<_> = self.hosts.iter().filter(|(_, host)| !host.on_trial).map(line).collect();
        serde_json::to_vec(&lines).expect("texts and numbers have a JSON form")
    }

    fn decode(bytes: &[u8], now: Instant, clock: SystemTime) -> Self {
        let lines: Vec<HealthLine> = serde_json::from_slice(bytes).unwrap_or_default();
        let clock = unix(clock);
        let host = |line: HealthLine| {
            let origin = Target::parse(&line.origin).ok()?.origin;
            // The clock may be wrong, now or in the earlier process. So a probe waits at most for the usual time.
            let wait = Duration::from_secs(line.probe_at.saturating_sub(clock)).min(probe_wait(line.strikes));
            let (strikes, probe_at) = (line.strikes, now + wait);
            let health = HostHealth { strikes, marked: now, probe_at, on_trial: false, is_evidence: false };
            Some(((origin, line.repository), health))
        };
        Self { hosts: lines.into_iter().take(HOSTS_MAX).filter_map(host).collect() }
    }
}

#[derive(Deserialize, Serialize)]
struct HealthLine {
    origin: String,
    repository: Option<String>,
    strikes: u32,
    /// The time of the next probe, in seconds since 1970.
    probe_at: u64,
}

fn probe_wait(strikes: u32) -> Duration {
    grown(PROBE_FIRST, 2.0, PROBE_MAX, strikes.saturating_sub(1))
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn read(file: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    if read.is_ok() { bytes } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(name: &str) -> Origin {
        Target::parse(&format!("https://{name}.example")).unwrap().origin
    }

    fn whole(name: &str) -> HealthKey {
        (origin(name), None)
    }

    #[test]
    fn a_host_is_bad_for_all_repositories_after_failures_of_two_or_of_its_own_connection() {
        use ErrorClass::{ConnectionRefused, RateLimited, RegistryFailed, TimedOut};
        use imagelet_core::error::Stage;
        let of = |party, stage, class| Fault { party, ..Fault::new(class, stage) };
        let own = |class| of(Party::Registry, Stage::Manifest, class);
        let store = |class| of(Party::RedirectTarget, Stage::Connect, class);
        for (what, failures, one, another) in [
            ("a limit", vec![("one", own(RateLimited))], false, false),
            ("500s of one", vec![("one", own(RegistryFailed)); 9], true, false),
            ("500s of two", vec![("one", own(RegistryFailed)), ("two", own(TimedOut))], true, true),
            ("a refused redirect", vec![("one", store(ConnectionRefused)); 9], true, false),
            ("redirects of two", vec![("one", store(ConnectionRefused)), ("two", store(TimedOut))], true, false),
            ("a redirect and a 500", vec![("one", store(TimedOut)), ("two", own(RegistryFailed))], true, false),
            ("a refused connection", vec![("one", own(ConnectionRefused))], true, true),
        ] {
            let health = HostsHealth::default();
            for (repository, fault) in failures {
                if let Some(bad) = proof(&fault) {
                    health.failed(&origin("a"), repository, bad, Instant::now());
                }
            }
            let is_bad = |repository| health.is_bad(&origin("a"), repository);
            assert_eq!((is_bad("one"), is_bad("three")), (one, another), "{what}");
            health.succeeded(&origin("a"), "one", Instant::now());
            assert!(!is_bad("one") && !is_bad("three"), "{what}, then a success");
            health.failed(&origin("a"), "four", Bad::Repository, Instant::now());
            assert!(!is_bad("three"), "{what}, then a success, and a failure of one more");
        }
    }

    #[test]
    fn repositories_that_fail_leave_room_for_hosts() {
        let (mut table, now) = (Table::default(), Instant::now());
        for index in 0..2 * HOSTS_MAX {
            table.failed(&(origin("a"), Some(index.to_string())), now, now);
        }
        assert!(table.failed(&whole("b"), now, now) && table.is_bad(&whole("b")));
        assert_eq!(table.hosts.len(), HOSTS_MAX);
    }

    /// A step at a second: a failure or success of a request that began at another, a probe, or its answer.
    enum Step {
        Fails { began: u64 },
        Works { began: u64 },
        Probe { due: bool },
        Answers,
    }

    #[test]
    fn a_host_is_bad_from_a_failure_to_a_success_and_probed_less_and_less_often() {
        use Step::{Answers, Fails, Probe, Works};
        let began = Instant::now();
        let host = whole("a");
        for (what, steps) in [
            ("one failure", vec![(1, Fails { began: 0 }, true), (10, Probe { due: false }, true)]),
            (
                "a probe, once a period",
                vec![
                    (1, Fails { began: 0 }, true),
                    (11, Probe { due: true }, true),
                    (11, Probe { due: false }, true),
                    (20, Probe { due: false }, true),
                    (21, Probe { due: true }, true),
                ],
            ),
            (
                "an answer puts it on trial, a success clears it",
                vec![
                    (1, Fails { began: 0 }, true),
                    (11, Probe { due: true }, true),
                    (12, Answers, false),
                    (12, Probe { due: false }, false),
                    (13, Works { began: 12 }, false),
                    (14, Fails { began: 13 }, true),
                    (24, Probe { due: true }, true),
                ],
            ),
            (
                "a failed trial doubles the period",
                vec![
                    (1, Fails { began: 0 }, true),
                    (11, Answers, false),
                    (12, Fails { began: 11 }, true),
                    (31, Probe { due: false }, true),
                    (32, Probe { due: true }, true),
                ],
            ),
            (
                "requests of before the mark count once and clear nothing",
                vec![
                    (5, Fails { began: 0 }, true),
                    (6, Fails { began: 4 }, true),
                    (7, Works { began: 4 }, true),
                    (15, Probe { due: true }, true),
                    (16, Works { began: 15 }, false),
                ],
            ),
            (
                "five minutes at most",
                (0..30)
                    .map(|second| (second, Fails { began: second }, true))
                    .chain([(328, Probe { due: false }, true), (329, Probe { due: true }, true)])
                    .collect(),
            ),
        ] {
            let mut table = Table::default();
            let at = |seconds| began + Duration::from_secs(seconds);
            for (second, step, is_bad) in steps {
                match step {
                    Fails { began } => drop(table.failed(&host, at(began), at(second))),
                    Works { began } => drop(table.succeeded(&host, at(began))),
                    Probe { due } => assert_eq!(table.take_probe(&host, at(second)), due, "{what}: at {second}"),
                    Answers => table.answered(&host),
                }
                assert_eq!(table.is_bad(&host), is_bad, "{what}: at {second}");
                assert!(!table.is_bad(&whole("b")), "{what}: another host");
            }
        }
    }

    #[test]
    fn health_survives_a_restart_and_a_damaged_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("health.json");
        let load = || HostsHealth::load(Some(file.clone()));
        let health = load();
        for name in ["a", "b"] {
            health.failed(&origin(name), "app", Bad::Repository, Instant::now());
        }
        health.succeeded(&origin("b"), "app", Instant::now());
        let again = load();
        assert!(again.is_bad(&origin("a"), "app") && !again.is_bad(&origin("b"), "app"));
        assert!(!again.is_bad(&origin("a"), "other"));
        again.succeeded(&origin("a"), "app", Instant::now());
        assert!(!load().is_bad(&origin("a"), "app"), "the restarted process clears it");
        for damage in ["", "{", "[]", r#"[{"origin":"file:///x","strikes":1,"probe_at":1}]"#, "\u{0}"] {
            std::fs::write(&file, damage).unwrap();
            assert_eq!(locked(&load().table).hosts.len(), 0, "{damage}");
        }
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        let health = load();
        health.failed(&origin("a"), "app", Bad::Host, Instant::now());
        assert!(health.is_bad(&origin("a"), "app"), "without a file it is known to this process");
    }

    #[test]
    fn a_wrong_clock_delays_no_probe() {
        let (now, clock) = (Instant::now(), SystemTime::now());
        let (hour, year) = (3600, 365 * 24 * 3600);
        for (probe_at, wait) in [
            (0, 0),
            (unix(clock) + 7, 7),
            (unix(clock) + 7 - hour, 0),
            (unix(clock) + 7 - year, 0),
            (unix(clock) + 7 + hour, 10),
            (unix(clock) + 7 + year, 10),
            (u64::MAX, 10),
        ] {
            let bytes = format!(r#"[{{"origin":"https://a.example","strikes":1,"probe_at":{probe_at}}}]"#);
            let table = Table::decode(bytes.as_bytes(), now, clock);
            assert_eq!(table.hosts[&whole("a")].probe_at - now, Duration::from_secs(wait), "{probe_at}");
        }
    }
}
