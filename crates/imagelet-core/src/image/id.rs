//! Image ids, and image keys with a runtime handler.

use std::{borrow::Cow, cmp::Ordering, fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::reference::shown_name;

/// The id of an image in its store: `sha256:` and the digest of the configuration in our own store and in containerd's.
/// Opaque, because other runtimes use other forms. Cheap to clone. Ordered by bytes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ImageId(IdText);

/// The length of `sha256:` and 64 digits.
const INLINE_MAX: usize = 71;

/// A pass over the images of a node compares each id several times, so an id of the usual length is stored inline. The
/// unused bytes are zero, and only longer texts are `Long`, so equal ids are equal values.
#[derive(Clone, PartialEq, Eq, Hash)]
enum IdText {
    Inline { length: u8, text: [u8; INLINE_MAX] },
    Long(Arc<str>),
}

impl ImageId {
    pub fn new(id: impl AsRef<str>) -> Self {
        let id = id.as_ref();
        Self(match u8::try_from(id.len()) {
            Ok(length) if id.len() <= INLINE_MAX => {
                let mut text = [0; INLINE_MAX];
                text[..id.len()].copy_from_slice(id.as_bytes());
                IdText::Inline { length, text }
            }
            _ => IdText::Long(Arc::from(id)),
        })
    }

    pub fn as_str(&self) -> &str {
        match &self.0 {
            IdText::Inline { .. } => str::from_utf8(self.as_bytes()).expect("it was copied from a text as a whole"),
            IdText::Long(text) => text,
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            IdText::Inline { length, text } => &text[..usize::from(*length)],
            IdText::Long(text) => text.as_bytes(),
        }
    }

    /// The id without the algorithm, cut to 13 characters, as crictl prints it.
    pub fn short(&self) -> &str {
        Self::shorten(self.as_str())
    }

    /// The text that a user sees for an image: its name, else its id as in [`Self::short`].
    pub fn shown<'a>(name: Option<&'a String>, id: &'a str) -> Cow<'a, str> {
        name.map_or(Cow::Borrowed(Self::shorten(id)), |name| shown_name(name))
    }

    pub fn shorten(id: &str) -> &str {
        let bare = id.strip_prefix("sha256:").unwrap_or(id);
        bare.get(..13).unwrap_or(bare)
    }
}

impl PartialOrd for ImageId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ImageId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl fmt::Debug for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ImageId").field(&self.as_str()).finish()
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ImageId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ImageId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

/// The key of the inventory: an image in the store of a handler. Prints as `ID` for an empty handler, else as
/// `ID,HANDLER` (`docs/spec/gc.md §1.3`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageKey {
    id: ImageId,
    handler: String,
}

impl ImageKey {
    pub fn new(id: ImageId, handler: String) -> Self {
        Self { id, handler }
    }

    /// Parses the printed form. The handler is after the first comma.
    pub fn parse(text: &str) -> Self {
        let (id, handler) = text.split_once(',').unwrap_or((text, ""));
        Self::new(ImageId::new(id), handler.to_owned())
    }

    pub fn id(&self) -> &ImageId {
        &self.id
    }

    /// Empty for the default handler.
    pub fn handler(&self) -> &str {
        &self.handler
    }
}

impl fmt::Display for ImageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.handler.is_empty() { self.id.fmt(f) } else { write!(f, "{},{}", self.id, self.handler) }
    }
}

impl Serialize for ImageKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ImageKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::parse(&text))
    }
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

    #[test]
    fn keys_read_and_print_as_the_kubelets() {
        let (cases, mut written) = (vectors("gc-image-tuple.json"), 0);
        assert_eq!(cases.len(), 6);
        for case in cases {
            let (input, expected) = (&case["input"], &case["expected"]);
            if let (Some(id), Some(handler)) = (input["image_id"].as_str(), input["runtime_handler"].as_str()) {
                let key = ImageKey::new(ImageId::new(id), handler.to_owned());
                assert_eq!(key.to_string(), expected["key"].as_str().unwrap(), "{}", case["name"]);
                written += 1;
            }
            let text = input["key"].as_str().or(expected["key"].as_str()).unwrap();
            assert_eq!(ImageKey::parse(text).id().as_str(), expected["id_from_key"].as_str().unwrap());
        }
        assert!(written > 0);
    }

    #[test]
    fn a_key_reads_back_what_it_printed() {
        for text in ["sha256:aa", "sha256:aa,kata", ",kata", "sha256:aa,a,b"] {
            assert_eq!(ImageKey::parse(text).to_string(), text);
        }
    }

    #[test]
    fn an_id_of_any_length_reads_back_and_is_ordered_as_its_text() {
        let lengths = [0, 1, 70, 71, 72, 300];
        let texts: Vec<String> = lengths.iter().flat_map(|length| ["a".repeat(*length), "ü".repeat(*length)]).collect();
        for one in &texts {
            assert_eq!(ImageId::new(one).as_str(), one);
            assert_eq!(format!("{:?}", ImageId::new(one)), format!("ImageId({one:?})"));
            for other in &texts {
                assert_eq!(ImageId::new(one).cmp(&ImageId::new(other)), one.cmp(other));
                assert_eq!(ImageId::new(one) == ImageId::new(other), one == other);
            }
        }
    }

    #[test]
    fn a_short_id_has_thirteen_characters_of_the_digest() {
        assert_eq!(ImageId::new(format!("sha256:{}", "0123456789abcdef".repeat(4))).short(), "0123456789abc");
        assert_eq!(ImageId::new("image-1").short(), "image-1");
    }
}
