//! The names of Docker Hub, which is the registry of references without a host.

/// The name in references and configurations.
pub const DOCKER_HUB: &str = "docker.io";
/// The host that serves the images.
pub const DOCKER_HUB_HOST: &str = "registry-1.docker.io";
/// The names in references and in `docker login`, and the host that serves the images.
pub const DOCKER_HUB_NAMES: [&str; 3] = [DOCKER_HUB, "index.docker.io", DOCKER_HUB_HOST];

pub fn is_docker_hub(host: &str) -> bool {
    DOCKER_HUB_NAMES.contains(&host)
}
