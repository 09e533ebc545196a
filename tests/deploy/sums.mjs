// Checks what no schema knows: that the numbers of deploy/kubernetes add up, and that its documents refer to
// each other by names, labels and ports that exist. checkSums(documents) -> problems, one line each.
import {byteSize, duration, mebibytes, quantity} from './units.mjs';

// What the heap holds besides the limits, and the process besides the heap; deploy/README.md tells what was
// measured.
const heapMargin = 256 * 2 ** 20;
const processMargin = 128 * 2 ** 20;
// Attends that wait for a position may hold a quarter of max_inflight_bytes besides it.
const inflightFactor = 1.25;
// Of the memory limit, what --max_state_bytes=0 takes for sessions.
const automaticState = 0.75;
// From the end of the drain to the end of the process.
const graceMargin = 5;

const includes = (labels, selector) => Object.entries(selector ?? {}).length > 0 &&
  Object.entries(selector).every(([key, value]) => labels?.[key] === value);

// {max_state_bytes: "3GiB", ...} of --max_state_bytes=3GiB or ATTND_MAX_STATE_BYTES; arguments go first.
export function optionsOf({env = [], args = []}) {
  const variables = env.filter(({name}) => name.startsWith('ATTND_'))
    .map(({name, value}) => [name.slice('ATTND_'.length).toLowerCase(), value]);
  return Object.fromEntries(
    [...variables, ...args.map((arg) => /^--([a-z_]+)=(.*)$/.exec(arg)?.slice(1) ?? [arg, ''])]);
}

// Seconds that a preStop hook takes; NaN where that cannot be told.
function hookSeconds(hook) {
  if (!hook) return 0;
  if (hook.sleep) return hook.sleep.seconds;
  const command = hook.exec?.command ?? [];
  return command.length === 2 && /(^|\/)sleep$/.test(command[0]) ? Number(command[1]) : NaN;
}

function checkGrace(pod, container, options, say) {
  const parts = {
    'preStop': hookSeconds(container.lifecycle?.preStop),
    '--drain_delay': duration(options.drain_delay),
    '--drain_deadline': duration(options.drain_deadline),
    'margin': graceMargin,
  };
  for (const [name, value] of Object.entries(parts)) {
    if (Number.isNaN(value)) return say(`${name} is not given as a duration, so that the grace period cannot be checked`);
  }
  const need = Object.values(parts).reduce((a, b) => a + b);
  const have = pod.terminationGracePeriodSeconds ?? 30;
  if (have < need) {
    const sum = Object.entries(parts).map(([name, value]) => `${name} ${value}`).join(' + ');
    say(`terminationGracePeriodSeconds is ${have}; it must be at least ${need} (${sum})`);
  }
}

function checkResources(container, options, say) {
  const {requests, limits} = container.resources ?? {};
  for (const resource of ['cpu', 'memory']) {
    if (!limits?.[resource]) return say(`resources.limits.${resource} is missing`);
    if (quantity(requests?.[resource]) !== quantity(limits[resource])) {
      say(`resources.requests.${resource} is ${requests?.[resource]}; it must equal the limit, ${limits[resource]}`);
    }
  }
  // Three budgets, none a part of another.
  const given = byteSize(options.max_state_bytes);
  const state = given === 0 ? automaticState * quantity(limits.memory) : given;
  const maps = byteSize(options.max_feature_map_bytes);
  const inflight = byteSize(options.max_inflight_bytes);
  if (Number.isNaN(state + maps + inflight)) {
    return say('--max_state_bytes, --max_feature_map_bytes and --max_inflight_bytes must be given as sizes');
  }
  const heap = Number(container.env?.find(({name}) => name === 'TCMALLOC_HEAP_LIMIT_MB')?.value) * 2 ** 20;
  const needOfHeap = state + maps + inflightFactor * inflight + heapMargin;
  if (!(heap >= needOfHeap)) {
    say(`TCMALLOC_HEAP_LIMIT_MB must be at least ${mebibytes(needOfHeap)} (--max_state_bytes ${mebibytes(state)}` +
      ` + --max_feature_map_bytes ${mebibytes(maps)}` +
      ` + ${inflightFactor} --max_inflight_bytes ${mebibytes(inflight)} + ${mebibytes(heapMargin)})`);
  }
  if (quantity(limits.memory) < heap + processMargin) {
    say(`resources.limits.memory is ${limits.memory}; it must be at least ${mebibytes(heap + processMargin)}` +
      ` (TCMALLOC_HEAP_LIMIT_MB + ${mebibytes(processMargin)})`);
  }
  if (Number(options.workers ?? 0) > Math.ceil(quantity(limits.cpu))) {
    say(`--workers is ${options.workers}; resources.limits.cpu is ${limits.cpu}`);
  }
}

// Options, container ports and probes speak of the same two ports.
function checkPorts(container, options, say) {
  const numbers = Object.fromEntries((container.ports ?? []).map((port) => [port.name, port.containerPort]));
  for (const [name, option] of [['grpc', 'listen'], ['http', 'http_listen']]) {
    const [, host, port] = /^(.*):([0-9]+)$/.exec(options[option] ?? '') ?? [];
    if (!['0.0.0.0', '[::]'].includes(host)) say(`--${option} is ${options[option]}; it must be on all interfaces`);
    if (Number(port) !== numbers[name]) {
      say(`--${option} is ${options[option]}; the container's port ${name} is ${numbers[name]}`);
    }
  }
  for (const probe of ['startupProbe', 'readinessProbe', 'livenessProbe']) {
    const {grpc, httpGet} = container[probe] ?? {};
    if (!grpc && !httpGet) say(`${probe} is missing`);
    if (grpc && grpc.port !== numbers.grpc) say(`${probe}.grpc.port is ${grpc.port}; attnd's is ${numbers.grpc}`);
    if (httpGet && httpGet.port !== 'http' && httpGet.port !== numbers.http) {
      say(`${probe}.httpGet.port is ${httpGet.port}; attnd's is ${numbers.http}`);
    }
    if (httpGet && !['/livez', '/readyz'].includes(httpGet.path)) {
      say(`${probe}.httpGet.path is ${httpGet.path}; it must be /livez or /readyz`);
    }
  }
}

function checkSecurity(pod, container, say) {
  const of = {...pod.securityContext, ...container.securityContext};
  const required = {
    'runAsNonRoot': of.runAsNonRoot === true,
    'runAsUser: 10001': of.runAsUser === 10001,
    'seccompProfile: RuntimeDefault': of.seccompProfile?.type === 'RuntimeDefault',
    'readOnlyRootFilesystem': of.readOnlyRootFilesystem === true,
    'allowPrivilegeEscalation: false': of.allowPrivilegeEscalation === false,
    'capabilities: drop ALL, add none':
      of.capabilities?.drop?.includes('ALL') === true && !of.capabilities.add?.length,
    'privileged: false': !of.privileged,
    'no host namespace': !pod.hostNetwork && !pod.hostPID && !pod.hostIPC,
    'no volumes': !pod.volumes?.length,
    'automountServiceAccountToken: false': pod.automountServiceAccountToken === false,
    'enableServiceLinks: false': pod.enableServiceLinks === false,
  };
  for (const [what, holds] of Object.entries(required)) {
    if (!holds) say(`the pod must have ${what}`);
  }
}

function checkImage(container, say) {
  const tag = /:([^:/]+)$/.exec(container.image)?.[1];
  if (!tag || tag === 'latest') say(`image is ${container.image}; it must have a tag that stays what it is`);
}

function checkStatefulSet(set, documents, say) {
  const pod = set.spec.template.spec;
  const labels = set.spec.template.metadata?.labels;
  if (pod.containers.length !== 1) return say('it must have one container');
  const [container] = pod.containers;
  const options = optionsOf(container);
  checkGrace(pod, container, options, say);
  checkResources(container, options, say);
  checkPorts(container, options, say);
  checkSecurity(pod, container, say);
  checkImage(container, say);
  if (!includes(labels, set.spec.selector?.matchLabels)) say('its selector does not match its own pods');
  for (const constraint of pod.topologySpreadConstraints ?? []) {
    if (!includes(labels, constraint.labelSelector?.matchLabels)) say('topologySpreadConstraints select other pods');
  }
  const named = (kind, name) => documents.find((d) => d.kind === kind && d.metadata.name === name);
  if (named('Service', set.spec.serviceName)?.spec.clusterIP !== 'None') {
    say(`serviceName is ${set.spec.serviceName}; there must be a headless Service of that name`);
  }
  if (named('ServiceAccount', pod.serviceAccountName)?.automountServiceAccountToken !== false) {
    say(`serviceAccountName is ${pod.serviceAccountName}; there must be such an account without a mounted token`);
  }
}

// Every document that selects pods selects the set's, by ports that they have.
function checkReferences(set, documents, problem) {
  const labels = set.spec.template.metadata?.labels;
  const ports = set.spec.template.spec.containers[0].ports ?? [];
  const has = (port) => ports.some((p) => p.name === port || p.containerPort === port);
  const selects = {
    Service: (d) => d.spec.selector,
    PodDisruptionBudget: (d) => d.spec.selector?.matchLabels,
    NetworkPolicy: (d) => d.spec.podSelector?.matchLabels,
  };
  for (const [kind, selector] of Object.entries(selects)) {
    const found = documents.filter((d) => d.kind === kind);
    if (found.length === 0) problem(set, `there is no ${kind} for it`);
    for (const d of found) if (!includes(labels, selector(d))) problem(d, 'its selector does not match the pods');
  }
  for (const d of documents) {
    if (d.kind === 'Service') {
      for (const port of d.spec.ports) {
        if (!has(port.targetPort ?? port.port)) problem(d, `targetPort ${port.targetPort ?? port.port} is no port of the pods`);
      }
    }
    if (d.kind === 'NetworkPolicy') checkPolicy(d, has, (text) => problem(d, text));
    if (d.kind !== 'Namespace' && d.metadata.namespace !== set.metadata.namespace) {
      problem(d, `it is in the namespace ${d.metadata.namespace}, the pods are in ${set.metadata.namespace}`);
    }
  }
}

function checkPolicy(policy, has, say) {
  for (const type of ['Ingress', 'Egress']) {
    if (!policy.spec.policyTypes?.includes(type)) say(`policyTypes must have ${type}`);
  }
  for (const rule of policy.spec.ingress ?? []) {
    if (!rule.ports?.length) say('a rule of ingress lets in to every port');
    for (const {port} of rule.ports ?? []) if (!has(port)) say(`port ${port} is no port of the pods`);
    const peers = rule.from ?? [];
    const labelled = (selector) => Object.keys(selector?.matchLabels ?? {}).length > 0;
    if (!peers.length || !peers.every((p) => labelled(p.podSelector) || labelled(p.namespaceSelector))) {
      say(`a rule of ingress lets in those without a label, to ${rule.ports?.map((p) => p.port)}`);
    }
  }
}

export function checkSums(documents) {
  const problems = [];
  const problem = (d, text) => problems.push(`${d.kind}/${d.metadata.name}: ${text}`);
  const sets = documents.filter((d) => d.kind === 'StatefulSet');
  if (sets.length !== 1) return [`there are ${sets.length} StatefulSets; there must be one`];
  checkStatefulSet(sets[0], documents, (text) => problem(sets[0], text));
  checkReferences(sets[0], documents, problem);
  return problems;
}
