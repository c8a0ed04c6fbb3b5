//! The two kinds of set: of a namespace, and of the cluster.

/// Which of the two kinds a set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SetScope {
    /// `ImageSet`: images of one namespace, with its pull secrets.
    Namespace,
    /// `ClusterImageSet`: images of the cluster, with the credentials of each node.
    Cluster,
}

impl SetScope {
    pub(crate) const ALL: [Self; 2] = [Self::Namespace, Self::Cluster];

    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Namespace => "ImageSet",
            Self::Cluster => "ClusterImageSet",
        }
    }
}
