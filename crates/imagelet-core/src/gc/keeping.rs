//! Which rule keeps which image: a plain function of the rules and what is known of the images.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::SystemTime,
};

use super::{
    Reason,
    facts::{Facts, Images},
    rules::{GcRules, Keep, KeepRule},
    tags::{Tag, last},
};
use crate::{image::ImageId, inventory::Origin};

/// Why an operator's rules hold each of these images; `None` where they do not.
pub(super) fn held_by_rules(images: &Images, rules: &GcRules, now: SystemTime) -> Vec<Option<Reason>> {
    if rules.is_empty() {
        return vec![None; images.len()];
    }
    let ruled: Vec<Ruled<'_>> = images.iter().map(Ruled::of).collect();
    let rule = |number: usize| rules.keep[number].to_string();
    let reason = |(kept, image): (Option<KeptBy>, Facts<'_>)| match kept {
        Some(KeptBy::Rule(number)) => Some(Reason::Rule { rule: rule(number) }),
        Some(KeptBy::LabelsUnknown(number)) => Some(Reason::LabelsUnknown { rule: rule(number) }),
        None => (rules.only_owned && image.origin() == Origin::Found).then_some(Reason::NotOwned),
    };
    keeping(&rules.keep, &ruled, now).into_iter().zip(images.iter()).map(reason).collect()
}

/// All that a rule may read of an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ruled<'a> {
    pub(super) id: &'a ImageId,
    pub(super) tags: &'a [String],
    pub(super) digests: &'a [String],
    /// `None` is earlier than all times.
    pub(super) first_seen: Option<SystemTime>,
    pub(super) last_used: Option<SystemTime>,
    /// `NAMESPACE/POD` that used it last.
    pub(super) last_user: Option<&'a str>,
    /// The labels of its configuration; `None`: nobody could tell.
    pub(super) labels: Option<&'a BTreeMap<String, String>>,
}

impl<'a> Ruled<'a> {
    fn of(facts: Facts<'a>) -> Self {
        Self {
            id: facts.id(),
            tags: facts.tags(),
            digests: facts.digests(),
            first_seen: facts.first_seen(),
            last_used: facts.last_used(),
            last_user: facts.last_user(),
            labels: facts.labels(),
        }
    }
}

/// Which rule keeps an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptBy {
    /// The rule of this number.
    Rule(usize),
    /// The rule of this number would, if the image had the label; its labels are not known.
    LabelsUnknown(usize),
}

/// For each image the first rule that keeps it, if any does. The order of the images does not matter.
pub(super) fn keeping(rules: &[KeepRule], images: &[Ruled<'_>], now: SystemTime) -> Vec<Option<KeptBy>> {
    let mut kept: Vec<Option<KeptBy>> = vec![None; images.len()];
    let is_fresh = |rule: &KeepRule, image: &Ruled<'_>| {
        let since = image.last_used.max(image.first_seen);
        rule.unused_max().is_none_or(|max| {
            // What happens in the future happens now.
            since.is_some_and(|since| now.duration_since(since).map_or(true, |passed| passed <= max))
        })
    };
    let mut repositories: Option<Repositories<'_>> = None;
    for (number, rule) in rules.iter().enumerate() {
        if let Keep::LastTags { repository, count } = rule.keep() {
            let repositories = repositories.get_or_insert_with(|| by_repository(images));
            let count = usize::try_from(count.get()).unwrap_or(usize::MAX);
            let covered = repositories.iter().filter(|(name, _)| repository.matches_name(name));
            let last: HashSet<&ImageId> =
                covered.flat_map(|(_, tags)| last(tags.clone(), count)).map(|image| images[image].id).collect();
            for (image, kept) in images.iter().zip(&mut kept) {
                if last.contains(image.id) && is_fresh(rule, image) {
                    kept.get_or_insert(KeptBy::Rule(number));
                }
            }
            continue;
        }
        for (image, kept) in images.iter().zip(&mut kept).filter(|(_, kept)| kept.is_none()) {
            *kept = covers(rule.keep(), image).filter(|_| is_fresh(rule, image)).map(|covered| match covered {
                Covered::Known => KeptBy::Rule(number),
                Covered::Perhaps => KeptBy::LabelsUnknown(number),
            });
        }
    }
    kept
}

/// The names of the labels that rules ask for.
pub(super) fn labels_read(rules: &[KeepRule]) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for rule in rules {
        if let Keep::Label { key, .. } = rule.keep() {
            names.insert(key.as_str());
        }
    }
    names
}

enum Covered {
    Known,
    Perhaps,
}

/// Whether a rule about single images covers this one.
fn covers(keep: &Keep, image: &Ruled<'_>) -> Option<Covered> {
    let is_covered = match keep {
        Keep::LastTags { .. } => false,
        Keep::Label { key, value } => {
            let Some(labels) = image.labels else { return Some(Covered::Perhaps) };
            let found = labels.get(key);
            found.is_some_and(|found| value.as_ref().is_none_or(|value| value.matches(found)))
        }
        Keep::Namespace(namespaces) => {
            let namespace = image.last_user.and_then(|user| user.split_once('/')).map(|(namespace, _)| namespace);
            namespace.is_some_and(|namespace| namespaces.matches(namespace))
        }
        Keep::Image(pattern) => pattern.covers(image.id.as_str(), image.tags, image.digests),
    };
    is_covered.then_some(Covered::Known)
}

type Repositories<'a> = HashMap<&'a str, Vec<Tag<'a>>>;

/// All tags by their repository. One image stored for several handlers is one image.
fn by_repository<'a>(images: &[Ruled<'a>]) -> Repositories<'a> {
    let mut repositories = Repositories::new();
    let mut numbers: HashMap<&ImageId, usize> = HashMap::with_capacity(images.len());
    for (number, image) in images.iter().enumerate() {
        let number = *numbers.entry(image.id).or_insert(number);
        for name in image.tags {
            if let Some((repository, text)) = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) {
                let tag = Tag { text, first_seen: image.first_seen, image: number };
                repositories.entry(repository).or_default().push(tag);
            }
        }
    }
    repositories
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{gc::KeepRuleText, image::ImageKey};

    #[derive(Debug)]
    struct Node {
        key: ImageKey,
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

    /// An image of this number, named by its tags in full, first seen at its number.
    fn image(number: u64, tags: &[&str]) -> Node {
        Node {
            key: ImageKey::new(ImageId::new(format!("sha256:{number:064x}")), String::new()),
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

    fn rule(text: KeepRuleText) -> KeepRule {
        KeepRule::try_from(text).unwrap()
    }

    fn last_tags(repository: &str, count: i64) -> KeepRule {
        let repository = Some(repository.to_owned());
        rule(KeepRuleText { repository, last_tags: Some(count), ..KeepRuleText::default() })
    }

    fn label(label: &str) -> KeepRule {
        rule(KeepRuleText { label: Some(label.to_owned()), ..KeepRuleText::default() })
    }

    fn pinned(image: &str, seconds: u64) -> KeepRule {
        let unused_max = Some(Duration::from_secs(seconds));
        rule(KeepRuleText { image: Some(image.to_owned()), unused_max, ..KeepRuleText::default() })
    }

    /// By image: the number of the rule that keeps it, and `?` where its labels are not known.
    fn kept(rules: &[KeepRule], nodes: &[Node], now: u64) -> Vec<String> {
        let ruled: Vec<Ruled<'_>> = nodes
            .iter()
            .map(|node| Ruled {
                id: node.key.id(),
                tags: &node.tags,
                digests: &node.digests,
                first_seen: Some(at(node.first_seen)),
                last_used: node.last_used.map(at),
                last_user: node.last_user,
                labels: node.labels.as_ref(),
            })
            .collect();
        let word = |kept: Option<KeptBy>| match kept {
            None => "-".to_owned(),
            Some(KeptBy::Rule(number)) => number.to_string(),
            Some(KeptBy::LabelsUnknown(number)) => format!("{number}?"),
        };
        keeping(rules, &ruled, at(now)).into_iter().map(word).collect()
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
        assert_eq!(labels_read(&[last_tags("a", 1), label("tier=x")]), BTreeSet::from(["tier"]));
        assert!(labels_read(&[last_tags("a", 1)]).is_empty());
    }

    #[test]
    fn a_namespace_keeps_what_its_pods_used_last() {
        let by = |number, last_user| Node { last_user, ..image(number, &[]) };
        let nodes = [by(1, Some("kube-system/dns")), by(2, Some("default/kube-x")), by(3, None), by(4, Some("mount"))];
        let rule = rule(KeepRuleText { namespace: Some("kube-*".to_owned()), ..KeepRuleText::default() });
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
        twin.key = ImageKey::new(twin.key.id().clone(), "kata".to_owned());
        let nodes = [image(3, &["a.io/x:3.0"]), twin, image(2, &["a.io/x:2.0"]), image(1, &["a.io/x:1.0"])];
        assert_eq!(kept(&[last_tags("a.io/x", 2)], &nodes, 9), ["0", "0", "0", "-"]);
    }

    #[test]
    fn an_image_in_several_repositories_is_kept_by_any_of_them() {
        let nodes = [image(1, &["a.io/x:1.0", "b.io/x:1.0"]), image(2, &["a.io/x:2.0"])];
        assert_eq!(kept(&[last_tags("*/x", 1)], &nodes, 9), ["0", "0"]);
    }
}
