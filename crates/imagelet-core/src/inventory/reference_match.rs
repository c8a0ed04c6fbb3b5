//! Reference matching: finds the listed images that a text names by id, id prefix, tag or digest, in full or shortened.
//! A node lists many images, and its containers name few of them. So the forms of each searched text are stored in a
//! map, and each listed name is looked up in the map.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::image::{Image, Reference};

pub(super) const ID_PREFIX_MIN: usize = 12;

#[derive(Debug)]
pub(super) struct ReferenceMatches<'a, 't> {
    images: &'a [Arc<Image>],
    found: HashMap<&'t str, Vec<usize>>,
}

impl<'a, 't> ReferenceMatches<'a, 't> {
    pub(super) fn of(images: &'a [Arc<Image>], texts: impl Iterator<Item = &'t str>) -> Self {
        let mut found: HashMap<&str, Vec<usize>> =
            texts.filter(|text| !text.is_empty()).map(|text| (text, Vec::new())).collect();
        let spelled: Vec<(&str, Vec<Cow<str>>)> = found.keys().map(|text| (*text, spellings(text).collect())).collect();
        let mut named: HashMap<&str, Vec<usize>> =
            spelled.iter().flat_map(|(_, all)| all).map(|spelling| (spelling.as_ref(), Vec::new())).collect();
        let longest = scan(images, &mut named);
        // A text with the length of a full id was already compared with the ids.
        let is_prefix = |bare: &&str| bare.len() < longest && is_id_prefix(bare);
        let prefixes = by_prefix(images, found.keys().map(|text| bare_id(text)).filter(is_prefix).collect());
        for (text, spellings) in &spelled {
            let by_spelling = spellings.iter().filter_map(|spelling| named.get(spelling.as_ref()));
            let mut indices: Vec<usize> = by_spelling.chain(prefixes.get(bare_id(text))).flatten().copied().collect();
            indices.sort_unstable();
            indices.dedup();
            found.insert(text, indices);
        }
        Self { images, found }
    }

    /// The images that a text names, in listing order. `text` must be one of the texts passed to `of`.
    pub(super) fn find(&self, text: &str) -> impl Iterator<Item = &'a Image> {
        self.found.get(text).into_iter().flatten().map(|index| self.images[*index].as_ref())
    }
}

/// Adds the index of each image to the texts of `named` that name the image. Returns the length of the longest id.
fn scan(images: &[Arc<Image>], named: &mut HashMap<&str, Vec<usize>>) -> usize {
    let mut longest = 0;
    if named.is_empty() {
        return longest;
    }
    // Normalisation only adds a tag to the part after the last slash. Names with another last part are not parsed.
    let tails: HashSet<&str> = named
        .keys()
        .flat_map(|spelling| {
            let tail = tail(spelling);
            [Some(tail), tail.strip_suffix(":latest")].into_iter().flatten()
        })
        .collect();
    let filter = EndFilter::of(named.keys().chain(&tails).copied());
    for (index, image) in images.iter().enumerate() {
        let mut note = |spelling: &str| {
            if let Some(indices) = named.get_mut(spelling) {
                indices.push(index);
            }
        };
        let id = bare_id(image.id.as_str());
        longest = longest.max(id.len());
        if filter.may_have_end_of(id) {
            note(id);
        }
        // A searched text equals the name or an end of the name: the part after the last slash, or the digest.
        for name in image.tags.iter().chain(&image.digests).filter(|name| filter.may_have_end_of(name)) {
            note(name);
            match name.split_once('@') {
                // A digest names the same image in every repository, so only the digest is compared.
                Some((_, digest)) => note(bare_id(digest)),
                None if tails.contains(tail(name)) => {
                    name.parse::<Reference>().into_iter().for_each(|it| note(&it.canonical().to_string()));
                }
                None => {}
            }
        }
    }
    longest
}

/// For each prefix, the indices of the images whose id begins with it. A binary search finds them in the sorted ids.
fn by_prefix<'t>(images: &[Arc<Image>], prefixes: Vec<&'t str>) -> HashMap<&'t str, Vec<usize>> {
    let bare = |index: usize| bare_id(images[index].id.as_str());
    let mut order: Vec<usize> = if prefixes.is_empty() { Vec::new() } else { (0..images.len()).collect() };
    order.sort_by_key(|index| bare(*index));
    let of_prefix = |prefix: &'t str| {
        let begin = order.partition_point(|index| bare(*index) < prefix);
        let found = order[begin..].iter().copied().take_while(|index| bare(*index).starts_with(prefix));
        (prefix, found.collect())
    };
    prefixes.into_iter().map(of_prefix).collect()
}

#[derive(Debug)]
struct EndFilter {
    /// A bit set of the hashed last eight bytes of each text. Names and digests differ most in these bytes.
    long: Vec<u64>,
    /// For each byte, whether a text with less than eight bytes ends with this byte.
    short: [bool; 256],
}

impl EndFilter {
    /// The number of bits in `long`: many more than a node has searched texts, so that few bits match by chance.
    const BITS: usize = 1 << 16;

    fn of<'t>(texts: impl Iterator<Item = &'t str>) -> Self {
        let mut filter = Self { long: vec![0; Self::BITS / 64], short: [false; 256] };
        for text in texts {
            match (text.as_bytes().last_chunk(), text.as_bytes().last()) {
                (Some(end), _) => filter.long[Self::place(*end) / 64] |= 1 << (Self::place(*end) % 64),
                (None, Some(last)) => filter.short[usize::from(*last)] = true,
                (None, None) => {}
            }
        }
        filter
    }

    fn may_have_end_of(&self, text: &str) -> bool {
        let is_long = text.as_bytes().last_chunk().is_some_and(|end| {
            let place = Self::place(*end);
            self.long[place / 64] & (1 << (place % 64)) != 0
        });
        is_long || text.as_bytes().last().is_some_and(|last| self.short[usize::from(*last)])
    }

    fn place(end: [u8; 8]) -> usize {
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = u64::from_le_bytes(end).wrapping_mul(MULTIPLIER) >> 48;
        usize::try_from(mixed).unwrap_or_default() % Self::BITS
    }
}

/// The forms in which a listing may have a text: unchanged, without `sha256:`, only the digest, and normalised.
fn spellings(text: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let digest = text.split_once('@').map(|(_, digest)| bare_id(digest).into());
    let canonical = text.parse::<Reference>().ok().map(|reference| reference.canonical().to_string().into());
    let all = [Some(text.into()), Some(bare_id(text).into()), digest, canonical];
    all.into_iter().flatten().filter(|spelling: &Cow<'_, str>| !spelling.is_empty())
}

pub(super) fn tail(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

pub(super) fn bare_id(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}

pub(super) fn is_id_prefix(bare: &str) -> bool {
    bare.len() >= ID_PREFIX_MIN && bare.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::image::{ByteSize, ImageId, ImageKey, ImageSpec, ImageUser};

    fn image(id: &str, tags: &[&str], digests: &[&str]) -> Image {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Image {
            id: ImageId::new(id),
            tags: owned(tags),
            digests: owned(digests),
            size: ByteSize(1),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
            artifact: None,
        }
    }

    /// The reference implementation: compares every spelling of every image.
    fn plainly(images: &[Arc<Image>], text: &str) -> Vec<ImageKey> {
        let bare = bare_id(text);
        let is_named = |image: &&Arc<Image>| {
            let mut of_image = vec![bare_id(image.id.as_str()).to_owned()];
            for name in image.tags.iter().chain(&image.digests) {
                of_image.push(name.clone());
                of_image.extend(name.parse::<Reference>().ok().map(|it| it.canonical().to_string()));
                of_image.extend(name.split_once('@').map(|(_, digest)| bare_id(digest).to_owned()));
            }
            spellings(text).any(|spelling| of_image.iter().any(|of_image| *of_image == spelling))
                || (is_id_prefix(bare) && bare_id(image.id.as_str()).starts_with(bare))
        };
        images.iter().filter(is_named).map(|image| image.key()).collect()
    }

    fn found(images: &[Arc<Image>], text: &str) -> Vec<ImageKey> {
        ReferenceMatches::of(images, [text].into_iter()).find(text).map(Image::key).collect()
    }

    #[test]
    fn a_text_names_an_image_by_any_of_its_spellings() {
        let hash = "ab".repeat(32);
        let digest = "cd".repeat(32);
        let id = format!("sha256:{hash}");
        let by_digest = format!("ghcr.io/team/app@sha256:{digest}");
        let images = [Arc::new(image(&id, &["docker.io/library/busybox:latest", "team/x"], &[&by_digest]))];
        let elsewhere = format!("mirror.example/y:v2@sha256:{digest}");
        for (text, is_named) in [
            (id.as_str(), true),
            (&hash, true),
            (&hash[..12], true),
            (&id[..20], true),
            (&hash[..11], false),
            ("busybox", true),
            ("library/busybox", true),
            ("busybox:latest", true),
            ("index.docker.io/library/busybox", true),
            ("busybox:1", false),
            ("docker.io/team/x:latest", true),
            ("team/x", true),
            ("x", false),
            (&by_digest, true),
            (&elsewhere, true),
            (&digest, true),
            (&digest[..12], false),
            ("", false),
        ] {
            assert_eq!(found(&images, text).len(), usize::from(is_named), "{text}");
            if !text.is_empty() {
                assert_eq!(plainly(&images, text).len(), usize::from(is_named), "{text}, plainly");
            }
        }
    }

    /// Names and ids that often match one another.
    pub(in crate::inventory) fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            "(docker.io/|index.docker.io/|r:5/)?(library/|t/)?[ab](:1|:latest)?",
            "(r:5/)?[ab](:1)?@sha256:(0{64}|1{64})",
            "(sha256:)?(0{12}|0{64}|01{11}|0{66})",
        ]
    }

    proptest! {
        #[test]
        fn what_is_found_is_what_asking_every_image_finds(
            listed in proptest::collection::vec(
                (prop_oneof!["sha256:0{64}", "sha256:01{63}", "0{66}", "x"], proptest::collection::vec(name(), 0..3)),
                0..5,
            ),
            texts in proptest::collection::vec(name(), 1..6),
        ) {
            let images: Vec<Arc<Image>> = listed
                .iter()
                .map(|(id, names)| {
                    let (digests, tags): (Vec<&str>, Vec<&str>) =
                        names.iter().map(String::as_str).partition(|name| name.contains('@'));
                    Arc::new(image(id, &tags, &digests))
                })
                .collect();
            let names = ReferenceMatches::of(&images, texts.iter().map(String::as_str));
            for text in &texts {
                prop_assert_eq!(names.find(text).map(Image::key).collect::<Vec<_>>(), plainly(&images, text), "{}", text);
            }
        }
    }
}
