//! Refuses answers of a runtime that leave out what every reader relies on (`spec/cri.md §3.3`).

use imagelet_core::runtime::RuntimeError;

use crate::v1;

/// All four fields must be there.
pub(crate) fn check_version(response: &v1::VersionResponse) -> Result<(), RuntimeError> {
    let missing: Vec<&str> = [
        ("Version", &response.version),
        ("RuntimeName", &response.runtime_name),
        ("RuntimeApiVersion", &response.runtime_api_version),
        ("RuntimeVersion", &response.runtime_version),
    ]
    .into_iter()
    .filter(|(_, value)| value.is_empty())
    .map(|(name, _)| name)
    .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(RuntimeError::other(format!("not all fields are set in VersionResponse (missing {})", missing.join(", "))))
}

/// A container has an id, a name, an age and an image.
pub(crate) fn check_container_status(status: &v1::ContainerStatus) -> Result<(), RuntimeError> {
    let complaint = if status.id.is_empty() {
        "status.Id is not set".to_owned()
    } else if let Some(metadata) = &status.metadata {
        if metadata.name.is_empty() {
            format!("metadata.Name is not in metadata {:?}", format!("attempt:{}", metadata.attempt))
        } else if status.created_at == 0 {
            "status.CreatedAt is not set".to_owned()
        } else if status.image.as_ref().is_none_or(|spec| spec.image.is_empty()) {
            "status.Image is not set".to_owned()
        } else if status.image_ref.is_empty() {
            "status.ImageRef is not set".to_owned()
        } else {
            return Ok(());
        }
    } else {
        "status.Metadata is not set".to_owned()
    };
    Err(RuntimeError::other(complaint))
}
