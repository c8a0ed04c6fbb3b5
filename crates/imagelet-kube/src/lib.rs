//! Kubernetes around the image manager: pods, secrets, tokens, report.
//!
//! Empty on purpose: the room is kept so that nothing of Kubernetes settles elsewhere. What will live here asks the API
//! server for pods, pull secrets and service-account tokens (the core's ports) and reports node images and events.
