//! `registries.conf` of containers/image, version 2, and its drop-ins: mirrors, locations, and blocked names.

use std::{
    cmp::Reverse,
    collections::HashSet,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use imagelet_core::{error::RuntimeError, image::Reference};
use serde::{Deserialize, Deserializer};

use super::{Capabilities, Host, HostPath, check_folder, complaint, parse_toml, read_file, shown};
use crate::{manifest::printable, registry::connection::Target};

const HOSTS_MAX: usize = 32;
const DROP_INS_MAX: usize = 64;
/// Maximum number of entries in the folder of drop-ins, including files that are no drop-ins.
const ENTRIES_MAX: usize = 4096;
/// Keys for short names, and keys for other tools. They have no effect on a pull.
const WITHOUT_EFFECT: [&str; 5] = [
    "unqualified-search-registries",
    "short-name-mode",
    "aliases",
    "credential-helpers",
    "additional-layer-store-auth-helper",
];

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct File {
    registry: Vec<Registry>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Registry {
    #[serde(deserialize_with = "place")]
    prefix: String,
    #[serde(deserialize_with = "place")]
    location: String,
    insecure: bool,
    blocked: bool,
    mirror: Vec<Mirror>,
    mirror_by_digest_only: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Mirror {
    #[serde(deserialize_with = "place")]
    location: String,
    insecure: bool,
    #[serde(rename = "pull-from-mirror")]
    pull_from: PullFrom,
}

#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PullFrom {
    #[default]
    #[serde(alias = "")]
    All,
    DigestOnly,
    TagOnly,
}

/// Reads a location or a prefix. As in containers/image, its final slash has no meaning.
fn place<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(|text| text.trim_end_matches('/').to_owned())
}

pub(super) fn load(
    file: &Path,
    reference: &Reference,
    found: &mut Vec<String>,
) -> Result<Option<Vec<Host>>, RuntimeError> {
    let files = read_files(file, found)?;
    let Some((path, registry, rest)) = choose(&files, reference.repository()) else { return Ok(None) };
    registry.hosts(rest, reference, is_blocked(&files)).map(Some).map_err(|problem| complaint(path, &problem))
}

pub(super) fn check(file: &Path, found: &mut Vec<String>) -> Result<(), RuntimeError> {
    for (path, File { registry }) in read_files(file, found)? {
        let mirrors = registry.iter().flat_map(|registry| &registry.mirror).map(|mirror| &mirror.location);
        let own = registry.iter().map(|registry| &registry.location).filter(|location| !location.is_empty());
        let problems = mirrors.chain(own).filter_map(|location| hosts_at(location, "/image", false).err());
        found.extend(problems.map(|problem| complaint(&path, &problem).chain()));
    }
    Ok(())
}

fn read_files(file: &Path, found: &mut Vec<String>) -> Result<Vec<(PathBuf, File)>, RuntimeError> {
    let drop_ins = drop_ins(file)?;
    let is_absent = std::fs::metadata(file).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let main = (!is_absent || drop_ins.is_empty()).then(|| file.to_owned());
    let read = |path: PathBuf| Ok((path.clone(), read_file(&path, found, File::parse)?));
    main.into_iter().chain(drop_ins).map(read).collect()
}

pub(super) fn folder(file: &Path) -> PathBuf {
    let mut folder = file.as_os_str().to_owned();
    folder.push(".d");
    PathBuf::from(folder)
}

/// The `*.conf` files of `registries.conf.d` beside `registries.conf`, in the order of their names.
fn drop_ins(file: &Path) -> Result<Vec<PathBuf>, RuntimeError> {
    let folder = folder(file);
    check_folder(&folder)?;
    let unusable = |problem: &dyn std::fmt::Display| complaint(&folder, &problem.to_string());
    let entries = match std::fs::read_dir(&folder) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
        entries => entries.map_err(|error| unusable(&error))?,
    };
    let mut paths = Vec::new();
    for (number, entry) in entries.enumerate() {
        if number == ENTRIES_MAX {
            return Err(unusable(&format_args!("it has more than {ENTRIES_MAX} entries")));
        }
        let path = entry.map_err(|error| unusable(&error))?.path();
        if path.extension().is_some_and(|extension| extension == "conf") && !path.is_dir() {
            paths.push(path);
        }
    }
    if paths.len() > DROP_INS_MAX {
        return Err(unusable(&format_args!("it has {} files; the limit is {DROP_INS_MAX}", paths.len())));
    }
    paths.sort();
    Ok(paths)
}

/// The entry with the longest prefix of a name, its file, and the name after the prefix. An entry replaces the entries
/// with the same prefix in earlier files. Of different prefixes with the same length, the first is chosen.
fn choose<'a, K>(files: &'a [(K, File)], name: &'a str) -> Option<(&'a K, &'a Registry, &'a str)> {
    let mut known: Vec<(&K, &Registry)> = Vec::new();
    for (key, file) in files {
        let prefixes: HashSet<&str> = file.registry.iter().map(Registry::prefix).collect();
        known.retain(|(_, earlier)| !prefixes.contains(earlier.prefix()));
        known.extend(file.registry.iter().map(|registry| (key, registry)));
    }
    let matches = known.into_iter().filter_map(|(key, registry)| Some((key, registry, registry.matched(name)?)));
    matches.min_by_key(|(_, registry, _)| Reverse(registry.prefix().len()))
}

#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn parse(texts: &[&str], reference: &Reference) -> Result<Option<Vec<Host>>, String> {
    let read = |text: &&str| Ok(((), File::parse(text, &mut Vec::new())?));
    let files = texts.iter().map(read).collect::<Result<Vec<_>, String>>()?;
    let chosen = choose(&files, reference.repository());
    chosen.map(|((), registry, rest)| registry.hosts(rest, reference, is_blocked(&files))).transpose()
}

fn is_blocked<K>(files: &[(K, File)]) -> impl Fn(&str) -> bool {
    |place| choose(files, place).is_some_and(|(_, registry, _)| registry.blocked)
}

impl File {
    fn parse(text: &str, warnings: &mut Vec<String>) -> Result<Self, String> {
        let file = parse_toml(text, warnings);
        warnings.retain(|warning| !WITHOUT_EFFECT.iter().any(|key| warning.starts_with(&format!("`{key}`"))));
        file
    }
}

impl Registry {
    /// The hosts of an image. `rest` is its name after the prefix. The mirrors of a blocked registry are used, so that
    /// a disconnected cluster can block the registry itself. A mirror is blocked by the entry for its name.
    fn hosts(&self, rest: &str, reference: &Reference, is_blocked: impl Fn(&str) -> bool) -> Result<Vec<Host>, String> {
        // A host other than the registry in the name is a mirror, even if it is the `location`.
        let registry = Host::own(reference.domain()).map_err(|problem| printable(&problem))?.origin;
        let (mut hosts, mut has_blocked) = (Vec::new(), false);
        for mirror in &self.mirror {
            let from = if self.mirror_by_digest_only { PullFrom::DigestOnly } else { mirror.pull_from };
            if from == PullFrom::TagOnly && reference.digest().is_some() {
                continue;
            }
            if is_blocked(&format!("{}{rest}", mirror.location)) {
                has_blocked = true;
                continue;
            }
            let found = hosts_at(&mirror.location, rest, mirror.insecure)?.into_iter();
            let capabilities = Capabilities { pull: true, resolve: from != PullFrom::DigestOnly };
            hosts.extend(found.map(|host| Host { capabilities, ..host }));
            if hosts.len() > HOSTS_MAX {
                return Err(format!("it names more than {HOSTS_MAX} hosts for one registry"));
            }
        }
        // The name does not change if there is no location, or if the location is the prefix.
        let has_location = !(self.location.is_empty() || self.location == self.prefix);
        if self.blocked || has_location && is_blocked(&format!("{}{rest}", self.location)) {
            has_blocked = true;
        } else {
            let path = format!("/{}", reference.path());
            let (location, rest) =
                if has_location { (&*self.location, rest) } else { (reference.domain(), path.as_str()) };
            let kept = |repository: &String| repository != reference.path();
            let found = hosts_at(location, rest, self.insecure)?.into_iter();
            hosts.extend(found.map(|mut host| {
                host.path.repository = host.path.repository.filter(kept);
                host
            }));
        }
        for host in &mut hosts {
            host.is_mirror = !host.origin.is_same_place(&registry);
        }
        if has_blocked && !hosts.iter().any(|host| host.capabilities.resolve || reference.digest().is_some()) {
            return Err(format!(
                "it blocks `{}`\nhint: pull from another registry; `blocked = true` is there on purpose",
                printable(self.prefix())
            ));
        }
        Ok(hosts)
    }

    fn prefix(&self) -> &str {
        if self.prefix.is_empty() { &self.location } else { &self.prefix }
    }

    /// The name after the prefix, from a slash or a colon on. The prefix `*.example.com` matches each subdomain.
    fn matched<'a>(&self, name: &'a str) -> Option<&'a str> {
        let prefix = self.prefix();
        let rest = match prefix.strip_prefix('*') {
            Some(suffix) if suffix.starts_with('.') => {
                let at = name.find(suffix).filter(|at| !name[..*at].contains('/'))?;
                &name[at + suffix.len()..]
            }
            _ if prefix.is_empty() => return None,
            _ => name.strip_prefix(prefix)?,
        };
        (rest.is_empty() || rest.starts_with(['/', ':'])).then_some(rest)
    }
}

/// The hosts of a location. With `insecure`, they use TLS with any certificate, then plain HTTP.
fn hosts_at(location: &str, rest: &str, insecure: bool) -> Result<Vec<Host>, String> {
    let bad = |problem: &str| format!("location `{}`: {problem}", shown(location));
    if location.contains("://") || location.contains('@') {
        return Err("a location is written as `HOST[:PORT][/PATH]`, without scheme and user".to_owned());
    }
    let place = format!("{location}{rest}");
    let (registry, repository) = place.split_once('/').unwrap_or((&place, ""));
    let repository = repository.trim_start_matches('/').to_owned();
    if repository.contains(':') {
        return Err(bad("the image's name has a port after the prefix, so that the location may have no path"));
    }
    if repository.is_empty() || repository.contains(['?', '#']) {
        return Err(bad("it leads to no repository"));
    }
    let host = Host::own(registry).map_err(|problem| bad(&problem))?;
    let host = Host { path: HostPath { repository: Some(repository), ..host.path }, ..host };
    if !insecure {
        return Ok(vec![host]);
    }
    let mut encrypted = Host { origin: host.origin.over_tls(), ..host.clone() };
    encrypted.connection.tls.skip_verify = true;
    encrypted.connection.may_be_tls = false;
    let plain = Target::parse(&format!("http://{}", host.origin.authority()))?.origin;
    if host.origin == plain {
        return Ok(vec![host]);
    }
    Ok(vec![encrypted, Host { origin: plain, ..host }])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Host and repository in order: `~` before a mirror, `!` for no tags, `?` for any certificate.
    fn chain(name: &str, text: &str) -> Result<Option<Vec<String>>, String> {
        let show = |host: &Host| {
            let mirror = if host.is_mirror { "~" } else { "" };
            let resolve = if host.capabilities.resolve { "" } else { "!" };
            let any = if host.connection.tls.skip_verify { "?" } else { "" };
            format!("{mirror}{}/{}{resolve}{any}", host.origin, host.path.repository.as_deref().unwrap_or("-"))
        };
        let hosts = parse(&[text], &name.parse().expect(name))?;
        Ok(hosts.map(|hosts| hosts.iter().map(show).collect()))
    }

    fn warnings(text: &str) -> Vec<String> {
        let mut warnings = Vec::new();
        File::parse(text, &mut warnings).map(drop).expect(text);
        warnings
    }

    const DIGEST: &str = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn the_longest_prefix_gives_mirrors_and_location() {
        let file = "unqualified-search-registries = [\"docker.io\"]\nshort-name-mode = \"enforcing\"\n\
            credential-helpers = [\"containers-auth.json\"]\nadditional-layer-store-auth-helper = \"x\"\n\
            [aliases]\n\"fedora\" = \"registry.fedoraproject.org/fedora\"\n\
            [[registry]]\nlocation = \"docker.io\"\n[[registry.mirror]]\nlocation = \"mirror.example/hub\"\n\
            [[registry.mirror]]\nlocation = \"lan.example:5000\"\ninsecure = true\npull-from-mirror = \"digest-only\"\n\
            [[registry]]\nprefix = \"docker.io/library\"\nlocation = \"own.example/copies\"\n\
            [[registry]]\nprefix = \"*.corp.example\"\ninsecure = true\n\
            [[registry]]\nprefix = \"bad.corp.example\"\nblocked = true\n\
            [[registry]]\nlocation = \"127.0.0.1:5000\"\ninsecure = true\n\
            [[registry]]\nlocation = \"tags.example\"\n[[registry.mirror]]\nlocation = \"m.example\"\npull-from-mirror = \"tag-only\"\n\
            [[registry]]\nlocation = \"digests.example\"\nmirror-by-digest-only = true\n[[registry.mirror]]\nlocation = \"m.example\"\n";
        for (name, expected) in [
            (
                "docker.io/team/app:v1",
                Some(
                    &[
                        "~https://mirror.example/hub/team/app",
                        "~https://lan.example:5000/team/app!?",
                        "~http://lan.example:5000/team/app!",
                        "https://registry-1.docker.io/-",
                    ][..],
                ),
            ),
            ("docker.io/library/app:v1", Some(&["~https://own.example/copies/app"])),
            (
                "docker.io/libraryx/app:v1",
                Some(&[
                    "~https://mirror.example/hub/libraryx/app",
                    "~https://lan.example:5000/libraryx/app!?",
                    "~http://lan.example:5000/libraryx/app!",
                    "https://registry-1.docker.io/-",
                ]),
            ),
            ("a.corp.example/x:v1", Some(&["https://a.corp.example/-?", "http://a.corp.example/-"])),
            ("a.corp.example:8443/x:v1", Some(&["https://a.corp.example:8443/-?", "http://a.corp.example:8443/-"])),
            ("tags.example:8443/x:v1", Some(&["~https://m.example:8443/x", "https://tags.example:8443/-"])),
            ("tags.examplex/x:v1", None),
            ("corp.example/x:v1", None),
            ("other.example/a.corp.example/x:v1", None),
            ("127.0.0.1:5000/x:v1", Some(&["http://127.0.0.1:5000/-"])),
            ("tags.example/x:v1", Some(&["~https://m.example/x", "https://tags.example/-"])),
            (&format!("tags.example/x{DIGEST}"), Some(&["https://tags.example/-"])),
            ("digests.example/x:v1", Some(&["~https://m.example/x!", "https://digests.example/-"])),
        ] {
            let expected = expected.map(|hosts| hosts.iter().map(|host| (*host).to_owned()).collect());
            assert_eq!(chain(name, file), Ok(expected), "{name}");
        }
        assert!(chain("bad.corp.example/x:v1", file).unwrap_err().contains("blocks `bad.corp.example`"));
        assert_eq!(warnings(file), Vec::<String>::new());
    }

    #[test]
    fn a_final_slash_of_a_place_says_nothing() {
        let file = "[[registry]]\nlocation = \"docker.io/\"\n[[registry.mirror]]\nlocation = \"mirror.example/hub/\"\n\
            [[registry]]\nprefix = \"quay.io/ocp//\"\nlocation = \"copies.example/o/\"\n\
            [[registry]]\nprefix = \"*.corp.example/\"\nblocked = true\n\
            [[registry]]\nlocation = \"closed.example/\"\nblocked = true\n\
            [[registry]]\nprefix = \"moved.example\"\nlocation = \"open.example/\"\n\
            [[registry.mirror]]\nlocation = \"closed.example/moved/\"\n";
        for (name, expected) in [
            ("docker.io/team/app:v1", &["~https://mirror.example/hub/team/app", "https://registry-1.docker.io/-"][..]),
            ("quay.io/ocp/release:v1", &["~https://copies.example/o/release"]),
            ("moved.example/app:v1", &["~https://open.example/-"]),
        ] {
            let expected = expected.iter().map(|host| (*host).to_owned()).collect();
            assert_eq!(chain(name, file), Ok(Some(expected)), "{name}");
        }
        for name in ["a.corp.example/x:v1", "closed.example/x:v1"] {
            assert!(chain(name, file).expect_err(name).contains("it blocks `"), "{name}");
        }
    }

    #[test]
    fn a_blocked_registry_is_not_asked_and_its_mirrors_are() {
        let file = "[[registry]]\nlocation = \"quay.io/ocp\"\nmirror-by-digest-only = true\nblocked = true\n\
            [[registry.mirror]]\nlocation = \"mirror.corp:5000/ocp\"\n\
            [[registry]]\nprefix = \"\"\nlocation = \"foo.example\"\nblocked = true\n\
            [[registry.mirror]]\nlocation = \"mirror.corp:5000/foo\"\n\
            [[registry.mirror]]\nlocation = \"closed.example/foo\"\n\
            [[registry]]\nlocation = \"closed.example\"\nblocked = true\n\
            [[registry]]\nprefix = \"moved.example\"\nlocation = \"closed.example/moved\"\n\
            [[registry.mirror]]\nlocation = \"mirror.corp:5000/moved\"\n\
            [[registry]]\nprefix = \"gone.example\"\nlocation = \"closed.example\"\n\
            [[registry]]\nprefix = \"other.example\"\nlocation = \"open.example\"\nblocked = true\n\
            [[registry]]\nlocation = \"tags.example\"\nblocked = true\n\
            [[registry.mirror]]\nlocation = \"mirror.corp:5000\"\npull-from-mirror = \"tag-only\"\n";
        for (name, expected) in [
            (format!("quay.io/ocp/release{DIGEST}"), Some("~https://mirror.corp:5000/ocp/release!")),
            ("quay.io/ocp/release:4.20".to_owned(), None),
            ("foo.example/app:v1".to_owned(), Some("~https://mirror.corp:5000/foo/app")),
            (format!("foo.example/app{DIGEST}"), Some("~https://mirror.corp:5000/foo/app")),
            ("closed.example/app:v1".to_owned(), None),
            ("moved.example/app:v1".to_owned(), Some("~https://mirror.corp:5000/moved/app")),
            ("gone.example/app:v1".to_owned(), None),
            ("other.example/app:v1".to_owned(), None),
            ("tags.example/app:v1".to_owned(), Some("~https://mirror.corp:5000/app")),
            (format!("tags.example/app{DIGEST}"), None),
        ] {
            match (chain(&name, file), expected) {
                (found, Some(host)) => assert_eq!(found, Ok(Some(vec![host.to_owned()])), "{name}"),
                (found, None) => assert!(found.expect_err(&name).contains("it blocks `"), "{name}"),
            }
        }
    }

    #[test]
    fn a_check_names_keys_without_effect_and_places_that_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (file, drop_in) = (folder.path().join("registries.conf"), folder.path().join("registries.conf.d/a.conf"));
        std::fs::create_dir(drop_in.parent().unwrap()).unwrap();
        std::fs::write(&file, "[[registry]]\nlocaton = \"a.example\"\nprefix = \"a.example\"\n").unwrap();
        std::fs::write(&drop_in, "[[registry]]\nprefix = \"b.example\"\nlocation = \"https://u:hunter2@b\"\n").unwrap();
        let check = || crate::registry::hosts::check_registry_files(std::slice::from_ref(&file));
        let found = check();
        assert!(found[0].ends_with("registries.conf`: `registry.0.locaton` is no key that is read"), "{found:?}");
        assert!(found[1].contains("a.conf` cannot be used: a location is written as") && found.len() == 2, "{found:?}");
        assert!(!found[1].contains("hunter2"), "{found:?}");
        std::fs::write(&drop_in, "[[registry]\n").unwrap();
        let is_named = || check().last().is_some_and(|last| last.contains("a.conf` cannot be used: line 1"));
        assert!(is_named(), "{:?}", check());
        std::fs::remove_file(&file).unwrap();
        assert!(is_named(), "a drop-in without the file itself: {:?}", check());
    }

    #[test]
    fn a_bad_file_is_refused_without_its_secrets() {
        for text in [
            "registry = 1",
            "[[registry]]\nlocation = 1",
            "[[registry]]\nprefix = \"a.example\"\nlocation = \"https://hunter2@b.example\"",
            "[[registry]]\nprefix = \"a.example\"\nlocation = \"hunter2@b.example\"",
            "[[registry]]\nprefix = \"a.example\"\nlocation = \"b.example:99999\"",
            "[[registry]]\nlocation = \"a.example\"\n[[registry.mirror]]\n",
            "[[registry]]\nlocation = \"a.example\"\n[[registry.mirror]]\nlocation = \"b.example\"\npull-from-mirror = \"never\"",
        ] {
            let error = chain("a.example/x:v1", text).expect_err(text);
            assert!(!error.contains("hunter2"), "{error}");
        }
        let with_path = "[[registry]]\nprefix = \"a.example\"\nlocation = \"b.example/copies\"";
        let error = chain("a.example:5000/x:v1", with_path).expect_err("a port amid a path");
        assert!(error.contains("has a port after the prefix"), "{error}");
        let many = "[[registry.mirror]]\nlocation = \"b.example\"\n".repeat(40);
        chain("a.example/x:v1", &format!("[[registry]]\nlocation = \"a.example\"\n{many}")).unwrap_err();
        let typo = "[[registry]]\nlocaton = \"a\"\n[[registry.mirror]]\nunsecure = true\n";
        assert_eq!(warnings(typo).len(), 2);
    }

    #[test]
    fn a_drop_in_replaces_the_entries_with_the_same_prefix_as_a_whole() {
        let main = "[[registry]]\nlocation = \"docker.io\"\n[[registry.mirror]]\nlocation = \"main.example\"\n\
                    [[registry]]\nlocation = \"quay.io\"\nblocked = true\n";
        let first = "[[registry]]\nprefix = \"docker.io\"\n[[registry.mirror]]\nlocation = \"first.example\"\n\
                     [[registry]]\nprefix = \"docker.io/library\"\nlocation = \"copies.example/hub\"\n";
        let second = "[[registry]]\nlocation = \"quay.io\"\n";
        let read = |name: &str, texts: &[&str]| {
            let hosts = parse(texts, &name.parse().unwrap()).map(Option::unwrap_or_default);
            hosts.map(|hosts| hosts.iter().map(|host| host.origin.authority()).collect::<Vec<_>>())
        };
        for (name, texts, expected) in [
            ("docker.io/team/app:v1", &[main][..], &["main.example", "registry-1.docker.io"][..]),
            ("docker.io/team/app:v1", &[main, first], &["first.example", "registry-1.docker.io"]),
            ("docker.io/team/app:v1", &[first, main], &["main.example", "registry-1.docker.io"]),
            ("docker.io/library/app:v1", &[first, main], &["copies.example"]),
            ("quay.io/a:v1", &[main, second], &["quay.io"]),
            ("quay.io/a:v1", &[first], &[]),
        ] {
            let expected = expected.iter().map(|host| (*host).to_owned()).collect();
            assert_eq!(read(name, texts), Ok(expected), "{name} {texts:?}");
        }
        assert!(read("quay.io/a:v1", &[second, main]).unwrap_err().contains("blocks `quay.io`"));
    }

    #[test]
    fn drop_ins_are_read_in_the_order_of_their_names_and_named_in_errors() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let (file, drop_ins) = (folder.path().join("registries.conf"), folder.path().join("registries.conf.d"));
        let mirrors = |name: &str| {
            load(&file, &name.parse().unwrap(), &mut Vec::new()).map(|hosts| {
                let hosts = hosts.unwrap_or_default();
                hosts.iter().filter(|host| host.is_mirror).map(|host| host.origin.authority()).collect::<Vec<_>>()
            })
        };
        mirrors("r.example/a:v1").expect_err("no file at all");
        std::fs::create_dir_all(drop_ins.join("folder.conf")).unwrap();
        let write = |name: &str, mirror: &str| {
            let text =
                format!("[[registry]]\nlocation = \"r.example\"\n[[registry.mirror]]\nlocation = \"{mirror}\"\n");
            std::fs::write(drop_ins.join(name), text).unwrap();
        };
        write("50-a.conf", "a.example");
        write("90-b.conf.bak", "b.example");
        assert_eq!(mirrors("r.example/a:v1").unwrap(), ["a.example"], "without the file itself");
        std::fs::write(&file, "[[registry]]\nlocation = \"other.example\"\n").unwrap();
        write("10-c.conf", "c.example");
        assert_eq!(mirrors("r.example/a:v1").unwrap(), ["a.example"]);
        write("60-d.conf", "https://d.example");
        let error = mirrors("r.example/a:v1").unwrap_err();
        assert!(error.chain().contains("registries.conf.d/60-d.conf"), "{}", error.chain());
        std::fs::remove_file(drop_ins.join("60-d.conf")).unwrap();
        for path in [drop_ins.clone(), drop_ins.join("10-c.conf")] {
            let before = std::fs::metadata(&path).unwrap().permissions();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(before.mode() | 0o002)).unwrap();
            let error = mirrors("r.example/a:v1").unwrap_err();
            assert!(error.chain().contains("every user may write to"), "{}", error.chain());
            std::fs::set_permissions(&path, before).unwrap();
        }
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&file, &file).unwrap();
        let error = mirrors("r.example/a:v1").unwrap_err();
        assert!(
            error.chain().contains("symbolic links"),
            "a file that cannot be read is not absent: {}",
            error.chain()
        );
        std::fs::remove_file(&file).unwrap();
        for number in 0..DROP_INS_MAX {
            write(&format!("x{number}.conf"), "x.example");
        }
        let error = mirrors("r.example/a:v1").unwrap_err();
        assert!(error.chain().contains("the limit is 64"), "{}", error.chain());
        for number in 0..=ENTRIES_MAX {
            std::fs::write(drop_ins.join(format!("note{number}")), "").unwrap();
        }
        let error = mirrors("r.example/a:v1").unwrap_err();
        assert!(error.chain().contains("more than 4096 entries"), "{}", error.chain());
    }
}
