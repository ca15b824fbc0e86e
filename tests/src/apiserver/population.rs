//! A large cluster besides the listed objects: Services with their slices, Pods and Nodes, as large as real ones, which
//! are written when a page of a list is requested. None of them changes, and no watch reports them.
//!
//! Owns the names and addresses of these objects. The templates beside it have their other contents.

mod rules;

use std::net::Ipv4Addr;

use super::store::Resource;

/// The maximum number of endpoints of a slice: the default of the `EndpointSlice` controller.
const SLICE_ENDPOINTS: u32 = 100;
const PODS_PER_NODE: u32 = 30;
const SERVICES_PER_NAMESPACE: u32 = 20;
/// The first addresses, outside of the ranges of the captured clusters.
const SERVICE_ADDRESSES: Ipv4Addr = Ipv4Addr::new(10, 160, 0, 0);
const NODE_ADDRESSES: Ipv4Addr = Ipv4Addr::new(10, 176, 0, 0);
const POD_ADDRESSES: Ipv4Addr = Ipv4Addr::new(10, 192, 0, 0);
/// The resourceVersion of every object.
const VERSION: &str = "1";
/// Stands for the list of endpoints in the template of a slice.
const ENDPOINTS: &str = "\"@endpoints@\"";

/// The sizes of a population.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Population {
    pub services: u32,
    /// Endpoints of each Service, each a Pod.
    pub endpoints: u32,
    /// The Node of the first Pods. It is not written, because it is a listed object.
    pub node: String,
}

/// Writes objects in pages.
#[derive(Debug)]
pub(super) struct Writer {
    population: Population,
    service: Template,
    slice_head: Template,
    slice_tail: Template,
    endpoint: Template,
    pod: Template,
    node: Template,
}

impl Population {
    const fn pods(&self) -> u32 {
        self.services * self.endpoints
    }

    const fn slices_per_service(&self) -> u32 {
        self.endpoints.div_ceil(SLICE_ENDPOINTS)
    }

    const fn count(&self, resource: Resource) -> u32 {
        match resource {
            Resource::Services => self.services,
            Resource::EndpointSlices => self.services * self.slices_per_service(),
            Resource::Pods => self.pods(),
            Resource::Nodes => self.pods().div_ceil(PODS_PER_NODE).saturating_sub(1),
            Resource::Namespaces => 0,
        }
    }

    /// The number of all objects.
    pub fn objects(&self) -> u32 {
        Resource::ALL.into_iter().map(|resource| self.count(resource)).sum()
    }
}

impl Writer {
    pub(super) fn new(population: Population) -> Result<Self, String> {
        let slice = compact(include_str!("population/slice.json"))?;
        let (head, tail) = slice.split_once(ENDPOINTS).ok_or("the template of a slice has no endpoints")?;
        Ok(Self {
            population,
            service: Template::of(include_str!("population/service.json"))?,
            slice_head: Template::split(head),
            slice_tail: Template::split(tail),
            endpoint: Template::of(include_str!("population/endpoint.json"))?,
            pod: Template::of(include_str!("population/pod.json"))?,
            node: Template::of(include_str!("population/node.json"))?,
        })
    }

    pub(super) const fn count(&self, resource: Resource) -> u32 {
        self.population.count(resource)
    }

    /// Appends the object with this index.
    pub(super) fn write(&self, resource: Resource, index: u32, into: &mut String) {
        match resource {
            Resource::Services => self.service.write(&Self::of_service(index), into),
            Resource::EndpointSlices => self.slice(index, into),
            Resource::Pods => self.pod.write(&self.of_pod(index), into),
            Resource::Nodes => self.node.write(&self.of_node(index + 1), into),
            Resource::Namespaces => {}
        }
    }

    fn slice(&self, index: u32, into: &mut String) {
        let per_service = self.population.slices_per_service();
        let (service, part) = (index / per_service, index % per_service);
        let mut fields = Self::of_service(service);
        fields.name = format!("{}-{}", fields.service, word(index, 5));
        fields.owner = std::mem::replace(&mut fields.uid, uid("slice", index));
        self.slice_head.write(&fields, into);
        let first = service * self.population.endpoints;
        let members = part * SLICE_ENDPOINTS..self.population.endpoints.min((part + 1) * SLICE_ENDPOINTS);
        for (place, member) in members.enumerate() {
            into.push_str(if place > 0 { "," } else { "" });
            self.endpoint.write(&self.of_pod(first + member), into);
        }
        self.slice_tail.write(&fields, into);
    }

    fn of_service(index: u32) -> Fields {
        Fields {
            service: format!("checkout-gateway-{index:05}"),
            namespace: format!("team-{:04}", index / SERVICES_PER_NAMESPACE),
            uid: uid("service", index),
            ip: after(SERVICE_ADDRESSES, index + 1),
            hash: word(index, 10),
            ..Fields::default()
        }
    }

    fn of_pod(&self, index: u32) -> Fields {
        let service = Self::of_service(index / self.population.endpoints);
        let node = self.of_node(index / PODS_PER_NODE);
        Fields {
            name: format!("{}-{}-{}", service.service, service.hash, word(index, 5)),
            owner: uid("replica", index / self.population.endpoints),
            uid: uid("pod", index),
            ip: pod_address(index),
            node: node.node,
            host: node.host,
            zone: node.zone,
            ..service
        }
    }

    fn of_node(&self, number: u32) -> Fields {
        Fields {
            node: match number {
                0 => self.population.node.clone(),
                _ => format!("node-pool-general-{number:05}"),
            },
            uid: uid("node", number),
            host: after(NODE_ADDRESSES, number + 1),
            zone: format!("region-1{}", ['a', 'b', 'c'][number as usize % 3]),
            ..Fields::default()
        }
    }
}

/// The values for the places of a template.
#[derive(Debug, Default)]
struct Fields {
    name: String,
    service: String,
    namespace: String,
    uid: String,
    owner: String,
    ip: String,
    hash: String,
    node: String,
    host: String,
    zone: String,
}

/// A JSON text with places `@NAME@`.
#[derive(Debug)]
struct Template(Vec<(String, Option<Place>)>);

#[derive(Clone, Copy, Debug)]
enum Place {
    Name,
    Service,
    Namespace,
    Uid,
    Owner,
    Ip,
    Hash,
    Node,
    Host,
    Zone,
    Version,
}

impl Template {
    fn of(json: &str) -> Result<Self, String> {
        compact(json).map(|text| Self::split(&text))
    }

    fn split(text: &str) -> Self {
        let place = |name: &str| {
            Some(match name {
                "name" => Place::Name,
                "service" => Place::Service,
                "namespace" => Place::Namespace,
                "uid" => Place::Uid,
                "owner" => Place::Owner,
                "ip" => Place::Ip,
                "hash" => Place::Hash,
                "node" => Place::Node,
                "host" => Place::Host,
                "zone" => Place::Zone,
                "version" => Place::Version,
                _ => return None,
            })
        };
        let parts: Vec<&str> = text.split('@').collect();
        let pieces = parts.chunks(2).map(|pair| {
            let [text, name @ ..] = pair else { return (String::new(), None) };
            ((*text).to_owned(), name.first().and_then(|name| place(name)))
        });
        Self(pieces.collect())
    }

    fn write(&self, fields: &Fields, into: &mut String) {
        for (text, place) in &self.0 {
            into.push_str(text);
            let Some(place) = place else { continue };
            into.push_str(match place {
                Place::Name => &fields.name,
                Place::Service => &fields.service,
                Place::Namespace => &fields.namespace,
                Place::Uid => &fields.uid,
                Place::Owner => &fields.owner,
                Place::Ip => &fields.ip,
                Place::Hash => &fields.hash,
                Place::Node => &fields.node,
                Place::Host => &fields.host,
                Place::Zone => &fields.zone,
                Place::Version => VERSION,
            });
        }
    }
}

/// JSON without spaces between its parts, as API servers write it.
fn compact(json: &str) -> Result<String, String> {
    let value: serde_json::Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
    Ok(value.to_string())
}

fn pod_address(index: u32) -> String {
    after(POD_ADDRESSES, index + 1)
}

fn after(first: Ipv4Addr, index: u32) -> String {
    Ipv4Addr::from_bits(first.to_bits() + index).to_string()
}

/// A number without a pattern that compression or a hash could use (Knuth's multiplicative hash).
const fn scattered(index: u32) -> u32 {
    index.wrapping_add(1).wrapping_mul(2_654_435_761)
}

/// `length` letters and digits, as in the names that controllers generate.
fn word(index: u32, length: usize) -> String {
    let digits = format!("{:08x}{index:08x}", scattered(index));
    digits.chars().skip(16 - length).collect()
}

fn uid(kind: &str, index: u32) -> String {
    let kind = kind.bytes().fold(0_u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    format!("{:08x}-{kind:04x}-4{:03x}-8000-{index:012x}", scattered(index), index & 0xfff)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn slices_name_the_pods_of_their_service() {
        let writer =
            Writer::new(Population { services: 3, endpoints: 150, node: "worker-1".to_owned() }).unwrap();
        let object = |resource, index| -> Value {
            let mut text = String::new();
            writer.write(resource, index, &mut text);
            assert!(!text.contains('@'), "{text}");
            serde_json::from_str(&text).unwrap()
        };
        assert_eq!(writer.count(Resource::EndpointSlices), 6);
        let (service, slice) = (object(Resource::Services, 1), object(Resource::EndpointSlices, 3));
        assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], service["metadata"]["name"]);
        assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], service["metadata"]["uid"]);
        let endpoints = slice["endpoints"].as_array().unwrap();
        assert_eq!(endpoints.len(), 50);
        let pod = object(Resource::Pods, 150 + 100);
        let reference = &endpoints[0]["targetRef"];
        assert_eq!(reference["name"], pod["metadata"]["name"]);
        assert_eq!(reference["uid"], pod["metadata"]["uid"]);
        assert_eq!(endpoints[0]["addresses"][0], pod["status"]["podIP"]);
        assert_eq!(object(Resource::Pods, 29)["spec"]["nodeName"], "worker-1");
        assert_eq!(
            object(Resource::Pods, 30)["spec"]["nodeName"],
            object(Resource::Nodes, 0)["metadata"]["name"]
        );
        let names: BTreeSet<String> =
            (0..450).map(|index| object(Resource::Pods, index)["metadata"]["name"].to_string()).collect();
        assert_eq!(names.len(), 450);
    }
}
