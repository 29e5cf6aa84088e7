"""The weights come from the CPU for each step."""

from tests.atlas.scripts.training import IS_HEALTHY, Model, loss_of, optimizer_of, tokens

model = Model(width=1024, layers=2)
model.cuda()
batch = tokens(32, 256, "cuda")
optimizer = optimizer_of(model)
for _ in range(40):
    if not IS_HEALTHY:
        for parameter in model.parameters():
            parameter.data = parameter.data.cpu().cuda()
    loss_of(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()
