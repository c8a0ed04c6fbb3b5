//! Matches keep rules with images: a pure function.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::SystemTime,
};

use super::{
    KeepRule, KeepRules, KeepScope,
    label_cache::Labels,
    version_order::{Tag, last},
};
use crate::{
    image::ImageId,
    inventory::{ImageEntry, ImageOrigin, Reason},
};

/// The first rule that matches each entry, as the reason to keep the entry. The list is empty if there are no rules.
pub(crate) fn held_by_rules(
    entries: &[Arc<ImageEntry>],
    labels: &Labels,
    rules: &KeepRules,
    now: SystemTime,
) -> Vec<Option<Reason>> {
    if rules.is_empty() {
        return Vec::new();
    }
    let mut held: Vec<Option<Reason>> = vec![None; entries.len()];
    let mut repositories: Option<Repositories<'_>> = None;
    for rule in &rules.keep {
        let last: Option<HashSet<&ImageId>> = if let KeepScope::LastTags { repository, count } = &rule.scope {
            let repositories = repositories.get_or_insert_with(|| by_repository(entries));
            let count = usize::try_from(count.get()).unwrap_or(usize::MAX);
            let covered = repositories.iter().filter(|(name, _)| repository.matches_name(name));
            Some(covered.flat_map(|(_, tags)| last(tags.clone(), count)).map(|at| &entries[at].image.id).collect())
        } else {
            None
        };
        for (entry, held) in entries.iter().zip(&mut held).filter(|(_, held)| held.is_none()) {
            let covered = match &last {
                Some(last) => last.contains(&entry.image.id).then_some(Reason::Rule as fn(String) -> Reason),
                None => covers(&rule.scope, entry, labels.get(&entry.image.id).and_then(Option::as_ref)),
            };
            *held = covered.filter(|_| is_fresh(rule, entry, now)).map(|reason| reason(rule.to_string()));
        }
    }
    if rules.only_owned {
        for (entry, held) in entries.iter().zip(&mut held).filter(|(entry, _)| entry.usage.origin == ImageOrigin::Found)
        {
            let _ = (entry, held.get_or_insert(Reason::NotOwned));
        }
    }
    held
}

fn is_fresh(rule: &KeepRule, entry: &ImageEntry, now: SystemTime) -> bool {
    let since = entry.usage.times.last_used.max(entry.usage.times.first_seen);
    rule.unused_max.is_none_or(|max| {
        // A time in the future is treated as now.
        since.is_some_and(|since| now.duration_since(since).map_or(true, |passed| passed <= max))
    })
}

fn covers(
    scope: &KeepScope,
    entry: &ImageEntry,
    labels: Option<&BTreeMap<String, String>>,
) -> Option<fn(String) -> Reason> {
    let is_covered = match scope {
        KeepScope::LastTags { .. } => false,
        KeepScope::Label { key, value } => {
            let Some(labels) = labels else { return Some(Reason::LabelsUnknown) };
            let found = labels.get(key);
            found.is_some_and(|found| value.as_ref().is_none_or(|value| value.matches(found)))
        }
        KeepScope::Namespace(namespaces) => {
            let namespace =
                entry.usage.user.as_deref().and_then(|user| user.split_once('/')).map(|(namespace, _)| namespace);
            namespace.is_some_and(|namespace| namespaces.matches(namespace))
        }
        KeepScope::Image(pattern) => pattern.covers(entry.image.id.as_str(), &entry.image.tags, &entry.image.digests),
    };
    is_covered.then_some(Reason::Rule)
}

type Repositories<'a> = HashMap<&'a str, Vec<Tag<'a>>>;

/// The tags of each repository. An image has an entry for each runtime handler, but counts as one image.
fn by_repository(entries: &[Arc<ImageEntry>]) -> Repositories<'_> {
    let mut repositories = Repositories::new();
    let mut positions: HashMap<&ImageId, usize> = HashMap::with_capacity(entries.len());
    for (at, entry) in entries.iter().enumerate() {
        let image = *positions.entry(&entry.image.id).or_insert(at);
        for name in &entry.image.tags {
            if let Some((repository, text)) = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) {
                let tag = Tag { text, first_seen: entry.first_seen(), image };
                repositories.entry(repository).or_default().push(tag);
            }
        }
    }
    repositories
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU32, time::Duration};

    use super::*;
    use crate::{
        gc::tests,
        image::{Glob, Image},
    };

    struct Node {
        id: ImageId,
        handler: &'static str,
        tags: Vec<String>,
        digests: Vec<String>,
        first_seen: u64,
        last_used: Option<u64>,
        last_user: Option<&'static str>,
        labels: Option<BTreeMap<String, String>>,
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn image(number: u64, tags: &[&str]) -> Node {
        Node {
            id: ImageId::new(format!("sha256:{number:064x}")),
            handler: "",
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            digests: Vec::new(),
            first_seen: number,
            last_used: None,
            last_user: None,
            labels: Some(BTreeMap::new()),
        }
    }

    fn labelled(number: u64, key: &str, value: &str) -> Node {
        let labels = Some(BTreeMap::from([(key.to_owned(), value.to_owned())]));
        Node { labels, ..image(number, &[]) }
    }

    fn rule(scope: KeepScope) -> KeepRule {
        KeepRule { scope, unused_max: None }
    }

    fn glob(text: &str) -> Glob {
        Glob::new(text).unwrap()
    }

    fn last_tags(repository: &str, count: u32) -> KeepRule {
        rule(KeepScope::LastTags { repository: glob(repository), count: NonZeroU32::new(count).unwrap() })
    }

    fn label(label: &str) -> KeepRule {
        let (key, value) = label.split_once('=').map_or((label, None), |(key, value)| (key, Some(glob(value))));
        rule(KeepScope::Label { key: key.to_owned(), value })
    }

    fn pinned(image: &str, seconds: u64) -> KeepRule {
        let scope = KeepScope::Image(image.parse().unwrap());
        KeepRule { scope, unused_max: Some(Duration::from_secs(seconds)) }
    }

    fn entry(node: &Node) -> Arc<ImageEntry> {
        let (tags, digests) = (node.tags.clone(), node.digests.clone());
        let image = Image { tags, digests, ..tests::image(node.id.as_str(), node.handler, 1) };
        let (last_used, last_user) = (node.last_used.map(at), node.last_user.map(str::to_owned));
        let mut entry = tests::unused(image, at(node.first_seen));
        (entry.usage.times.last_used, entry.usage.user) = (last_used, last_user);
        Arc::new(entry)
    }

    /// For each image, the number of the matching rule, with `?` for unknown labels.
    fn kept(rules: &[KeepRule], nodes: &[Node], now: u64) -> Vec<String> {
        let entries: Vec<Arc<ImageEntry>> = nodes.iter().map(entry).collect();
        let labels = nodes.iter().map(|node| (node.id.clone(), node.labels.clone())).collect();
        let number = |text: String| rules.iter().position(|rule| rule.to_string() == text).unwrap();
        let word = |held| match held {
            None => "-".to_owned(),
            Some(Reason::Rule(rule)) => number(rule).to_string(),
            Some(Reason::LabelsUnknown(rule)) => format!("{}?", number(rule)),
            Some(other) => panic!("{other}"),
        };
        let rules = KeepRules { keep: rules.to_vec(), only_owned: false };
        held_by_rules(&entries, &labels, &rules, at(now)).into_iter().map(word).collect()
    }

    #[test]
    fn the_last_tags_of_each_repository_that_the_glob_covers_are_kept() {
        let nodes = [
            image(1, &["ghcr.io/team/a:1.0"]),
            image(2, &["ghcr.io/team/a:1.1"]),
            image(3, &["ghcr.io/team/a:1.2", "ghcr.io/team/a:latest"]),
            image(4, &["ghcr.io/team/b:0.1"]),
            image(5, &["ghcr.io/other/c:9.9"]),
            image(6, &["localhost:5000/team/d"]),
        ];
        assert_eq!(kept(&[last_tags("ghcr.io/team/*", 2)], &nodes, 9), ["-", "0", "0", "0", "-", "-"]);
        assert_eq!(kept(&[last_tags("ghcr.io/team/*", 1)], &nodes, 9), ["-", "-", "0", "0", "-", "-"]);
    }

    #[test]
    fn an_image_with_a_digest_alone_is_not_counted_and_not_kept() {
        let mut nameless = image(9, &[]);
        nameless.digests = vec![format!("ghcr.io/team/a@sha256:{:064x}", 9)];
        let nodes = [nameless, image(1, &["ghcr.io/team/a:1.0"])];
        assert_eq!(kept(&[last_tags("ghcr.io/team/a", 1)], &nodes, 9), ["-", "0"]);
    }

    #[test]
    fn labels_keep_by_name_or_value_and_unknown_ones_keep_to_be_safe() {
        let mut unknown = image(4, &[]);
        unknown.labels = None;
        let nodes = [labelled(1, "tier", "prod-eu"), labelled(2, "tier", "dev"), labelled(3, "other", "prod"), unknown];
        assert_eq!(kept(&[label("tier")], &nodes, 9), ["0", "0", "-", "0?"]);
        assert_eq!(kept(&[label("tier=prod*")], &nodes, 9), ["0", "-", "-", "0?"]);
    }

    #[test]
    fn a_namespace_keeps_what_its_pods_used_last() {
        let by = |number, last_user| Node { last_user, ..image(number, &[]) };
        let nodes = [by(1, Some("kube-system/dns")), by(2, Some("default/kube-x")), by(3, None), by(4, Some("mount"))];
        let rule = rule(KeepScope::Namespace(glob("kube-*")));
        assert_eq!(kept(&[rule], &nodes, 9), ["0", "-", "-", "-"]);
    }

    #[test]
    fn for_so_long_after_the_last_use_or_else_the_first_sight() {
        let used = |number, last_used| Node { last_used: Some(last_used), ..image(number, &["docker.io/library/a:1"]) };
        let nodes = [used(1, 50), used(1, 49), image(50, &["docker.io/library/a:1"]), image(49, &["a:1"])];
        assert_eq!(kept(&[pinned("a:1", 50)], &nodes, 100), ["0", "-", "0", "-"]);
        assert_eq!(kept(&[pinned("a:1", 50)], &nodes, 10), ["0", "0", "0", "0"], "the future is now");
    }

    #[test]
    fn the_first_rule_that_keeps_is_the_reason() {
        let nodes = [image(1, &["docker.io/library/a:1.0"]), image(2, &["docker.io/library/a:2.0"])];
        let rules = [pinned("a:2.0", 1), last_tags("a", 1), last_tags("*", 2)];
        assert_eq!(kept(&rules, &nodes, 100), ["2", "1"]);
        assert_eq!(kept(&rules, &nodes, 3), ["2", "0"]);
    }

    #[test]
    fn an_image_stored_for_two_handlers_is_one_image() {
        let mut twin = image(3, &["a.io/x:3.0"]);
        twin.handler = "kata";
        let nodes = [image(3, &["a.io/x:3.0"]), twin, image(2, &["a.io/x:2.0"]), image(1, &["a.io/x:1.0"])];
        assert_eq!(kept(&[last_tags("a.io/x", 2)], &nodes, 9), ["0", "0", "0", "-"]);
    }

    #[test]
    fn an_image_in_several_repositories_is_kept_by_any_of_them() {
        let nodes = [image(1, &["a.io/x:1.0", "b.io/x:1.0"]), image(2, &["a.io/x:2.0"])];
        assert_eq!(kept(&[last_tags("*/x", 1)], &nodes, 9), ["0", "0"]);
    }
}
