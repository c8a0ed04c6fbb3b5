//! Which name in a signature is accepted for an image.

use imagelet_core::image::{Reference, trim_tag_and_digest};

use crate::manifest::printable;

/// How the signed name and the requested one have to agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Both have a tag or a digest and are equal.
    Exact,
    /// A request by tag as `matchExact`; a request by digest needs the repository alone, since the digest is signed.
    #[default]
    RepositoryOfDigestOrExact,
    /// The same repository.
    SameRepository,
}

impl Identity {
    pub(crate) fn check(self, requested: &Reference, signed: &str) -> Result<(), String> {
        let refusal = || format!("a signature is for `{}`, not for `{requested}`", printable(signed));
        let name: Reference = signed.parse().map_err(|_| refusal())?;
        // Parsing adds the tag `latest` to a bare repository.
        let is_bare = trim_tag_and_digest(signed).is_ok_and(|bare| bare.len() == signed.len());
        let same_repository = name.repository() == requested.repository();
        let is_exact = !is_bare && name.canonical() == requested.canonical();
        let is_accepted = match self {
            Self::Exact => is_exact,
            Self::RepositoryOfDigestOrExact if requested.digest().is_some() => same_repository,
            Self::RepositoryOfDigestOrExact => is_exact,
            Self::SameRepository => same_repository,
        };
        if is_accepted { Ok(()) } else { Err(refusal()) }
    }
}
