//! Media types: the kind and the compression of a document or a layer.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
    /// The blob is a file of an artifact, not an archive. The store keeps it unchanged.
    Stored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LayerKind {
    Tar(Compression),
    /// A layer that a registry need not serve. Its links to other sites are ignored.
    Foreign(Compression),
    Encrypted,
    Unknown,
}

impl LayerKind {
    pub(crate) fn of(media_type: &str) -> Self {
        let media_type = media_type_base(media_type);
        if media_type.ends_with("+encrypted") || media_type.ends_with("+enc") {
            return Self::Encrypted;
        }
        let foreign =
            ["application/vnd.docker.image.rootfs.foreign.", "application/vnd.oci.image.layer.nondistributable."];
        match media_type.as_str() {
            "application/vnd.oci.image.layer.v1.tar" | "application/vnd.docker.image.rootfs.diff.tar" => {
                Self::Tar(Compression::None)
            }
            "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip"
            | "application/vnd.docker.image.rootfs.diff.tar+gzip" => Self::Tar(Compression::Gzip),
            "application/vnd.oci.image.layer.v1.tar+zstd"
            | "application/vnd.docker.image.rootfs.diff.tar.zstd"
            | "application/vnd.docker.image.rootfs.diff.tar+zstd" => Self::Tar(Compression::Zstd),
            other if foreign.iter().any(|prefix| other.starts_with(prefix)) => match other.rsplit(['.', '+']).next() {
                Some("tar") => Self::Foreign(Compression::None),
                Some("gzip") => Self::Foreign(Compression::Gzip),
                Some("zstd") => Self::Foreign(Compression::Zstd),
                _ => Self::Unknown,
            },
            _ => Self::Unknown,
        }
    }
}

/// The compression of an archive of `ModelPack` (also with its earlier type names) or `KitOps`. `None` for other types.
pub(super) fn model_archive(media_type: &str) -> Option<Compression> {
    const FAMILIES: [&str; 3] =
        ["application/vnd.cncf.model.", "application/vnd.cnai.model.", "application/vnd.kitops.modelkit."];
    let media_type = media_type_base(media_type);
    let of_family = FAMILIES.iter().find_map(|family| media_type.strip_prefix(family))?;
    match of_family.rsplit_once(".tar")?.1 {
        "" => Some(Compression::None),
        "+gzip" => Some(Compression::Gzip),
        "+zstd" => Some(Compression::Zstd),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DocumentKind {
    Image,
    Index,
    Schema1,
}

pub(super) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

pub(crate) const MANIFEST_MEDIA_TYPES: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.docker.distribution.manifest.v2+json";

impl DocumentKind {
    pub(crate) fn of(media_type: &str) -> Option<Self> {
        match media_type {
            OCI_MANIFEST | DOCKER_MANIFEST => Some(Self::Image),
            OCI_INDEX | DOCKER_LIST => Some(Self::Index),
            "application/vnd.docker.distribution.manifest.v1+json"
            | "application/vnd.docker.distribution.manifest.v1+prettyjws"
            | "application/vnd.docker.container.image.v1+prettyjws" => Some(Self::Schema1),
            _ => None,
        }
    }

    pub(crate) fn may_lead_to_image(media_type: &str) -> bool {
        matches!(Self::of(&media_type_base(media_type)), Some(Self::Image | Self::Index))
    }
}

/// Whether an image configuration may have this media type. Old tools write unrelated types.
pub(super) fn may_be_image_config(media_type: &str) -> bool {
    matches!(
        media_type_base(media_type).as_str(),
        "application/vnd.oci.image.config.v1+json"
            | "application/vnd.docker.container.image.v1+json"
            | "application/octet-stream"
            | "application/json"
            | "text/html"
            | ""
    )
}

pub(crate) fn media_type_base(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}
