//! Selects the image for a platform from an index: by the platforms in the index, else by those in the configurations.

use imagelet_core::{
    error::{ErrorClass, Fault, RuntimeError, RuntimeErrorKind, Stage},
    image::{Digest, Platform},
};

use super::{
    Descriptor, DescriptorPlatform, DocumentKind, INDEX_DEPTH_MAX, ImageConfig, Index, Manifest, ManifestDocument,
    platform::OfferedPlatforms, unacceptable,
};

/// Maximum number of documents that are fetched to read their platforms. No image has this many platforms.
const DOCUMENTS_MAX: usize = 32;

pub(crate) trait DocumentSource: Sync {
    type Document: Clone + Send;

    fn about(&self, error: RuntimeError) -> RuntimeError {
        error
    }

    /// Whether the source may have an entry. An archive need not contain all entries of an index.
    fn may_have(&self, _entry: &Descriptor) -> bool {
        true
    }

    fn manifest(
        &self,
        entry: &Descriptor,
    ) -> impl Future<Output = Result<(Self::Document, ManifestDocument), RuntimeError>> + Send;

    fn config(&self, manifest: &Manifest) -> impl Future<Output = Result<ImageConfig, RuntimeError>> + Send;
}

#[derive(Clone, Debug)]
pub(crate) struct Selected<D> {
    pub(crate) first: D,
    pub(crate) chosen: D,
    pub(crate) manifest: Manifest,
    /// Whether an index names the platform. Then another platform in the configuration is accepted.
    pub(crate) is_named: bool,
}

pub(crate) enum IndexMatch<'a> {
    Named(&'a Descriptor),
    /// No entry names the platform, but the configurations of these entries may name it.
    Unnamed(Vec<&'a Descriptor>),
}

impl Index {
    /// Chooses the best entry, and the first of equal entries. An artifact is chosen only if no image matches.
    pub(crate) fn choose(&self, platform: &Platform) -> IndexMatch<'_> {
        let rank = |entry: &Descriptor| entry.platform.as_ref().and_then(|offered| offered.rank(platform));
        let named = self.manifests.iter().filter_map(|entry| rank(entry).map(|rank| (entry, rank)));
        if let Some((entry, _)) = named.min_by_key(|(entry, rank)| (entry.is_artifact(), *rank)) {
            return IndexMatch::Named(entry);
        }
        let may_be = |entry: &&Descriptor| {
            let is_open = entry.platform.as_ref().is_none_or(|offered| offered.may_be_for(platform));
            is_open && (self.manifests.len() == 1 || DocumentKind::may_lead_to_image(&entry.media_type))
        };
        let open = || self.manifests.iter().filter(may_be);
        let images: Vec<_> = open().filter(|entry| !entry.is_artifact()).collect();
        if images.is_empty() && !self.names_platforms() {
            return IndexMatch::Unnamed(open().take(1).collect());
        }
        IndexMatch::Unnamed(images)
    }

    /// The entry that the index alone decides on, and whether the index names its platform. `None` if it cannot decide.
    pub(crate) fn chosen_alone(&self, platform: &Platform) -> Option<(&Descriptor, bool)> {
        match self.choose(platform) {
            IndexMatch::Named(entry) => Some((entry, true)),
            IndexMatch::Unnamed(entries) if self.manifests.len() == 1 => entries.first().map(|entry| (*entry, false)),
            IndexMatch::Unnamed(_) => None,
        }
    }

    /// Whether containerd also chooses `chosen`. Of the entries without a platform, containerd checks only the first.
    pub(crate) fn leads_runtimes_to(&self, chosen: &Digest, platform: &Platform) -> bool {
        let first = || self.manifests.iter().find(|entry| entry.platform.is_none());
        matches!(self.choose(platform), IndexMatch::Named(_)) || first().is_some_and(|entry| entry.digest == *chosen)
    }

    fn names_platforms(&self) -> bool {
        self.manifests.iter().filter_map(|entry| entry.platform.as_ref()).any(DescriptorPlatform::is_of_a_machine)
    }
}

/// Selects the image for a platform. `levels` is the nesting depth of `index`; a top index has 1. Entries without a
/// platform are checked in order, up to a limit. An artifact, or an image whose configuration has no platform, is
/// selected only if no other entry names a platform.
pub(crate) async fn select<S: DocumentSource>(
    source: &S,
    index: Index,
    levels: usize,
    wanted: &Platform,
) -> Result<Selected<S::Document>, RuntimeError> {
    let mut search = Search {
        wanted,
        pending: Vec::new(),
        fetches: 0,
        best: None,
        plain: None,
        artifact: None,
        offered: OfferedPlatforms::default(),
        is_offered: false,
        is_cut: false,
        unusable: None,
    };
    search.open(&index, Place { levels, first: None, is_named: false, is_only: true });
    while let Some((entry, place)) = search.pending.pop() {
        if !place.is_only && !source.may_have(&entry) {
            continue;
        }
        let (document, read) = match source.manifest(&entry).await {
            Err(error) if !place.is_only && is_of_the_document(&error) => {
                search.unusable(error);
                continue;
            }
            read => read?,
        };
        let first = place.first.clone().unwrap_or_else(|| document.clone());
        match read {
            ManifestDocument::Index(_) if place.levels >= INDEX_DEPTH_MAX => {
                let message = format!("the image is an index of more than {INDEX_DEPTH_MAX} levels");
                return Err(source.about(unacceptable(message)));
            }
            ManifestDocument::Index(index) => {
                search.open(&index, Place { levels: place.levels + 1, first: Some(first), ..place });
            }
            ManifestDocument::Image(manifest) => {
                let image = Selected { first, chosen: document, manifest, is_named: place.is_named };
                if place.is_only {
                    return Ok(image);
                }
                if image.manifest.artifact_kind().is_some() {
                    search.artifact.get_or_insert(image);
                    continue;
                }
                let platform = match source.config(&image.manifest).await {
                    Ok(config) => config.platform,
                    Err(error) if is_of_the_document(&error) => {
                        search.unusable(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                if search.judge(image, &platform) {
                    break;
                }
            }
        }
    }
    search.end().map_err(|error| source.about(error))
}

/// Whether the error concerns only one document, so that another document of the index may be the image.
fn is_of_the_document(error: &RuntimeError) -> bool {
    use RuntimeErrorKind::{Corrupt, NotFound, Unacceptable};
    matches!(error.kind(), NotFound | Corrupt | Unacceptable)
}

#[derive(Clone)]
struct Place<D> {
    levels: usize,
    first: Option<D>,
    is_named: bool,
    /// Whether no other document can be chosen. Then an error of this document ends the search.
    is_only: bool,
}

struct Search<'a, D> {
    wanted: &'a Platform,
    /// The entries that are not checked yet. The last of them is checked next.
    pending: Vec<(Descriptor, Place<D>)>,
    fetches: usize,
    best: Option<(usize, Selected<D>)>,
    plain: Option<Selected<D>>,
    artifact: Option<Selected<D>>,
    offered: OfferedPlatforms,
    is_offered: bool,
    is_cut: bool,
    unusable: Option<RuntimeError>,
}

impl<D: Clone> Search<'_, D> {
    fn open(&mut self, index: &Index, place: Place<D>) {
        self.is_offered |= index.names_platforms();
        index.manifests.iter().filter_map(|entry| entry.platform.as_ref()).for_each(|it| self.offered.add(it));
        match index.choose(self.wanted) {
            IndexMatch::Named(entry) => {
                self.pending = vec![(entry.clone(), Place { is_named: true, is_only: true, ..place })];
                self.best = None;
            }
            IndexMatch::Unnamed(entries) => {
                let place = Place { is_only: place.is_only && index.manifests.len() == 1, ..place };
                let fetches = entries.len().min(DOCUMENTS_MAX - self.fetches);
                self.fetches += fetches;
                self.is_cut |= fetches < entries.len();
                let taken = entries[..fetches].iter().rev();
                self.pending.extend(taken.map(|entry| ((*entry).clone(), place.clone())));
            }
        }
    }

    /// Compares an image with the best image so far. Returns whether it is a best match, which ends the search.
    fn judge(&mut self, image: Selected<D>, platform: &DescriptorPlatform) -> bool {
        if !platform.is_named() {
            self.plain.get_or_insert(image);
            return false;
        }
        self.is_offered = true;
        self.offered.add(platform);
        let Some(rank) = platform.rank(self.wanted) else { return false };
        if self.best.as_ref().is_none_or(|(best, _)| rank < *best) {
            self.best = Some((rank, image));
        }
        rank == 0
    }

    /// Records the first error of an unusable document. An absent document is no error.
    fn unusable(&mut self, error: RuntimeError) {
        if error.kind() != RuntimeErrorKind::NotFound {
            self.unusable.get_or_insert(error);
        }
    }

    fn end(self) -> Result<Selected<D>, RuntimeError> {
        let unnamed = self.plain.or(self.artifact).filter(|_| !self.is_offered);
        let cut = if self.is_cut {
            format!("; of the entries without a platform, {DOCUMENTS_MAX} were looked at")
        } else {
            String::new()
        };
        let unusable = self.unusable.filter(|_| !self.is_offered);
        self.best.map(|(_, image)| image).or(unnamed).ok_or_else(|| {
            if let Some(unusable) = unusable {
                return unusable;
            }
            unacceptable(format!("the image is not offered for `{}`, only for: {}{cut}", self.wanted, self.offered))
                .with_hint("ask for one of these with --platform, or use another tag")
                .with_fault(Fault::new(ErrorClass::PlatformMissing, Stage::Manifest))
        })
    }
}
