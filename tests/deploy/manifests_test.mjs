// Breaks the manifests on purpose, one thing at a time: the checks must find each, and only that.
//   NPM_DIRECTORY=... MANIFESTS=rendered.yaml SERVER=attnd node --test manifests_test.mjs
import assert from 'node:assert/strict';
import {spawn} from 'node:child_process';
import {once} from 'node:events';
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {join} from 'node:path';
import test from 'node:test';
import {schemaChecker} from './schema.mjs';
import {checkSums, optionsOf} from './sums.mjs';
import {byteSize, duration, quantity} from './units.mjs';

const directory = process.env.NPM_DIRECTORY;
const yaml = createRequire(join(directory, 'package.json'))('yaml');
const text = readFileSync(process.env.MANIFESTS, 'utf8');
const checkSchema = schemaChecker(directory);

// The documents by kind; both Services apart.
function load() {
  const documents = yaml.parseAllDocuments(text).map((d) => d.toJS());
  const named = (kind, name = 'attnd') => documents.find((d) => d.kind === kind && d.metadata.name === name);
  const set = named('StatefulSet');
  const pod = set.spec.template.spec;
  const setOption = (name, value) => {
    const variable = `ATTND_${name.toUpperCase()}`;
    pod.containers[0].env = pod.containers[0].env.filter((entry) => entry.name !== variable)
      .concat(value === undefined ? [] : [{name: variable, value}]);
  };
  return {documents, set, pod, container: pod.containers[0], setOption,
    service: named('Service'), pods: named('Service', 'attnd-pods'), policy: named('NetworkPolicy'),
    budget: named('PodDisruptionBudget'), account: named('ServiceAccount')};
}

test('the manifests are right', () => {
  const {documents} = load();
  assert.deepEqual(checkSchema(documents), []);
  assert.deepEqual(checkSums(documents), []);
});

test('the server takes the options of the pods, and ends with status 0', async () => {
  const options = {...optionsOf(load().container), listen: '127.0.0.1:0', http_listen: '127.0.0.1:0', drain_delay: '0'};
  const args = Object.entries(options).map(([name, value]) => `--${name}=${value}`);
  const server = spawn(process.env.SERVER, args, {stdio: ['ignore', 'ignore', 'pipe'], timeout: 60_000});
  let log = '';
  server.stderr.on('data', (data) => {
    const before = log.includes('"event":"ready"');
    log += data;
    // Once: a second signal would end the server at once.
    if (!before && log.includes('"event":"ready"')) server.kill('SIGTERM');
  });
  const [status] = await once(server, 'close');
  assert.match(log, /"event":"ready"/);
  assert.equal(status, 0, log);
});

test('every line of the table of limits adds up', () => {
  const readme = readFileSync(new URL('../../deploy/README.md', import.meta.url), 'utf8');
  const lines = [...readme.matchAll(/^\| ([0-9]+) GiB \| ([0-9]+) \| (\w+) \| (\w+) \| (\w+) \|$/gm)];
  assert.equal(lines.length, 6);
  for (const [line, memory, heap, state, maps, inflight] of lines) {
    const {documents, container, setOption} = load();
    container.resources.requests.memory = container.resources.limits.memory = `${memory}Gi`;
    container.env.find(({name}) => name === 'TCMALLOC_HEAP_LIMIT_MB').value = heap;
    setOption('max_state_bytes', state);
    setOption('max_feature_map_bytes', maps);
    setOption('max_inflight_bytes', inflight);
    assert.deepEqual(checkSums(documents), [], line);
  }
});

test('--max_state_bytes=0 with the other defaults fits from 3840 MiB on', () => {
  for (const [memory, fits] of [[3839, false], [3840, true]]) {
    const {documents, container, setOption} = load();
    container.resources.requests.memory = container.resources.limits.memory = `${memory}Mi`;
    container.env.find(({name}) => name === 'TCMALLOC_HEAP_LIMIT_MB').value = `${memory - 128}`;
    setOption('max_state_bytes', '0');
    assert.equal(checkSums(documents).length === 0, fits, `${memory} MiB`);
  }
});

// [what is broken, how, what the only problem says]
const schemaCases = [
  ['a misspelt field', (m) => { m.container.imagePullPolice = 'Always'; }, /"imagePullPolice"' does not exist in type 'Container'/],
  ['a field at the wrong depth', (m) => { m.pod.readOnlyRootFilesystem = true; }, /"readOnlyRootFilesystem"' does not exist in type 'PodSpec'/],
  ['a string for a number', (m) => { m.set.spec.replicas = '1'; }, /'string' is not assignable|replicas must be integer/],
  ['a number for a string', (m) => { m.container.env[0].value = 3; }, /'number' is not assignable|env.0.value must be string/],
  ['a fraction', (m) => { m.set.spec.replicas = 1.5; }, /replicas must be integer/],
  ['a list for a quantity', (m) => { m.container.resources.limits.cpu = []; }, /StatefulSet.*(assignable|limits.cpu)/],
  ['a name for a number of a port', (m) => { m.pods.spec.ports[0].port = 'grpc'; }, /Service.*('string' is not assignable|port must be integer)/],
  ['a missing field', (m) => { delete m.set.spec.selector; }, /'selector' is missing|required property selector/],
  ['a version that does not exist', (m) => { m.budget.apiVersion = 'policy/v3'; }, /no types of policy.v3/],
  ['a kind that does not exist', (m) => { m.budget.kind = 'PodDisruption'; }, /PodDisruption/],
];
const sumCases = [
  ['a grace period that is too short', (m) => { m.pod.terminationGracePeriodSeconds = 34; }, /is 34; it must be at least 35/],
  ['the default grace period', (m) => { delete m.pod.terminationGracePeriodSeconds; }, /is 30; it must be at least 35/],
  ['a longer drain', (m) => m.setOption('drain_deadline', '1m'), /at least 75/],
  ['a hook that takes the time', (m) => { m.container.lifecycle = {preStop: {exec: {command: ['sleep', '10']}}}; }, /preStop 10/],
  ['a hook of unknown length', (m) => { m.container.lifecycle = {preStop: {exec: {command: ['sh', '-c', 'wait']}}}; }, /preStop is not/],
  ['a drain that is not told', (m) => m.setOption('drain_deadline'), /--drain_deadline is not/],
  ['a memory limit that is too small', (m) => { m.container.resources.requests.memory = m.container.resources.limits.memory = '3Gi'; }, /memory is 3Gi; it must be at least 4096 MiB/],
  ['more sessions than memory', (m) => m.setOption('max_state_bytes', '4GiB'), /HEAP_LIMIT_MB must be at least 4928 MiB/],
  ['more learned maps than memory', (m) => m.setOption('max_feature_map_bytes', '321MiB'),
    /HEAP_LIMIT_MB must be at least 3969 MiB .*--max_feature_map_bytes 321 MiB/],
  ['learned maps forgotten in the limits of a small pod', (m) => {
    m.container.resources.requests.memory = m.container.resources.limits.memory = '1Gi';
    m.container.env.find(({name}) => name === 'TCMALLOC_HEAP_LIMIT_MB').value = '896';
    m.setOption('max_state_bytes', '512MiB');
    m.setOption('max_inflight_bytes', '64MiB');
  }, /HEAP_LIMIT_MB must be at least 1104 MiB/],
  ['three quarters of a pod for sessions, and too little besides', (m) => {
    m.container.resources.requests.memory = m.container.resources.limits.memory = '3Gi';
    m.container.env.find(({name}) => name === 'TCMALLOC_HEAP_LIMIT_MB').value = '2944';
    m.setOption('max_state_bytes', '0');
  }, /HEAP_LIMIT_MB must be at least 3136 MiB \(--max_state_bytes 2304 MiB/],
  ['no limit of the heap', (m) => { m.container.env = m.container.env.filter(({name}) => !name.startsWith('TCMALLOC')); }, /HEAP_LIMIT_MB must be/],
  ['an unlimited state', (m) => m.setOption('max_state_bytes'), /must be given as sizes/],
  ['learned maps that are not told', (m) => m.setOption('max_feature_map_bytes'), /must be given as sizes/],
  ['no processor limit', (m) => { delete m.container.resources.limits.cpu; }, /limits.cpu is missing/],
  ['more workers than processors', (m) => m.setOption('workers', '8'), /--workers is 8/],
  ['more workers, as an argument', (m) => { m.container.args = ['--workers=8']; }, /--workers is 8/],
  ['a server on loopback', (m) => m.setOption('listen', '127.0.0.1:50051'), /on all interfaces/],
  ['a port that nobody listens on', (m) => { m.container.ports[1].containerPort = 9191; }, /port http is 9191/],
  ['a probe of another port', (m) => { m.container.readinessProbe.grpc.port = 50052; }, /readinessProbe.grpc.port is 50052/],
  ['a probe of another path', (m) => { m.container.livenessProbe.httpGet.path = '/healthz'; }, /\/healthz/],
  ['no liveness probe', (m) => { delete m.container.livenessProbe; }, /livenessProbe is missing/],
  ['a Service of other pods', (m) => { m.service.spec.selector = {app: 'attnd'}; }, /Service\/attnd: its selector/],
  ['a Service to a port that is not there', (m) => { m.service.spec.ports[0].targetPort = 'rpc'; }, /targetPort rpc/],
  ['a Service that is not headless', (m) => { delete m.pods.spec.clusterIP; }, /headless/],
  ['a set that does not select its pods', (m) => { m.set.spec.selector.matchLabels.tier = 'a'; }, /its own pods/],
  ['a budget of other pods', (m) => { m.budget.spec.selector.matchLabels = {}; }, /Budget\/attnd: its selector/],
  ['a policy of no pods', (m) => { m.policy.spec.podSelector.matchLabels = {app: 'other'}; }, /Policy\/attnd: its selector/],
  ['a policy that lets everybody in', (m) => { delete m.policy.spec.ingress[0].from; }, /without a label, to grpc/],
  ['a policy that lets all pods in', (m) => { m.policy.spec.ingress[0].from = [{podSelector: {}}]; }, /without a label/],
  ['a policy for another port', (m) => { m.policy.spec.ingress[1].ports[0].port = 9091; }, /port 9091/],
  ['a policy that lets everything out', (m) => { m.policy.spec.policyTypes = ['Ingress']; }, /must have Egress/],
  ['no policy', (m) => { m.documents.splice(m.documents.indexOf(m.policy), 1); }, /no NetworkPolicy/],
  ['another namespace', (m) => { m.account.metadata.namespace = 'default'; }, /the namespace default/],
  ['a mounted token', (m) => { m.account.automountServiceAccountToken = true; }, /without a mounted token/],
  ['a writable root', (m) => { m.container.securityContext.readOnlyRootFilesystem = false; }, /readOnlyRootFilesystem/],
  ['a capability', (m) => { m.container.securityContext.capabilities.add = ['NET_ADMIN']; }, /add none/],
  ['another user', (m) => { m.container.securityContext.runAsUser = 0; }, /runAsUser/],
  ['an image that changes', (m) => { m.container.image = 'attnd:latest'; }, /attnd:latest/],
];
for (const [cases, check] of [[schemaCases, checkSchema], [sumCases, checkSums]]) {
  for (const [what, breakIt, expected] of cases) {
    test(`found: ${what}`, () => {
      const manifests = load();
      breakIt(manifests);
      const problems = check(manifests.documents);
      assert.ok(problems.length > 0, 'nothing was found');
      assert.ok(problems.every((p) => expected.test(p)), problems.join('\n'));
    });
  }
}

test('units', () => {
  assert.equal(quantity('4Gi'), 2 ** 32);
  assert.equal(quantity('500m'), 0.5);
  assert.equal(quantity(2), 2);
  assert.ok(Number.isNaN(quantity('4GiB')));
  assert.equal(byteSize('3GiB'), 3 * 2 ** 30);
  assert.equal(byteSize('512B'), 512);
  assert.ok(Number.isNaN(byteSize(undefined)));
  assert.equal(duration('1m30s'), 90);
  assert.equal(duration('500ms'), 0.5);
  assert.equal(duration('0'), 0);
  assert.ok(Number.isNaN(duration('soon')));
});
